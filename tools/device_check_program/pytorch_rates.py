"""What PyTorch reaches on this card with the operations that tools/device_check measures: one line each."""

import time

import torch
import torch.nn.functional as F


def seconds_of(run):
    """Of a call, queued behind others of its kind."""
    run()
    torch.cuda.synchronize()
    calls = 1
    while True:
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        if seconds > 0.05:
            return seconds / calls
        calls *= 4


def attention(heads, width):
    """Causal, 8 documents of 2048 tokens."""
    shape = (8, heads, 2048, width)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    flops = 4 * 8 * heads * width * 2048 * 2048 / 2

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    out = forward()
    gradient = torch.randn_like(out)

    def backward():
        torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

    print(f"PyTorch attention_forward bf16 D {width}   {flops / seconds_of(forward) / 1e12:9.1f} TFLOP/s")
    print(f"PyTorch attention_backward bf16 D {width}  {2.5 * flops / seconds_of(backward) / 1e12:9.1f} TFLOP/s")


def product():
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    print(f"PyTorch matrix product bf16 8192^3     {2 * 8192**3 / seconds_of(lambda: a @ b) / 1e12:9.1f} TFLOP/s")


print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}")
product()
attention(12, 64)
attention(16, 128)
