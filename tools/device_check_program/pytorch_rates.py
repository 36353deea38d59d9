"""What PyTorch reaches on this card with what tools/device_check measures: operations, or the training of a model.

    pytorch_rates.py operations
    pytorch_rates.py train gpt2_124m|llama_1_3b

A line of training: `training MODEL PyTorch,compiled TOKENS/S tokens/s PARAMETERS parameters (...)`. It is training.cpp's:
the deck's model on one batch of random tokens, in bf16 (autocast), by plain gradient descent.
"""

import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F

TOOLS = pathlib.Path(__file__).resolve().parent.parent
BATCHES = dict(gpt2_124m=(16, 1024), llama_1_3b=(4, 2048))  # documents and their tokens, as in training.cpp


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

    print(f"PyTorch attention_forward bf16 D {width}   {flops / seconds_of(forward) / 1e12:9.1f} TFLOP/s", flush=True)
    print(f"PyTorch attention_backward bf16 D {width}  {2.5 * flops / seconds_of(backward) / 1e12:9.1f} TFLOP/s", flush=True)


def product():
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    print(f"PyTorch matrix product bf16 8192^3     {2 * 8192**3 / seconds_of(lambda: a @ b) / 1e12:9.1f} TFLOP/s", flush=True)


def train(name):
    """Steps of the model, compiled and as it is; whichever is faster counts."""
    sys.path.insert(0, str(TOOLS))
    import compare_pytorch

    documents, length = BATCHES[name]
    config = compare_pytorch.read_model(str(TOOLS.parent / "inputs" / f"bench_{name}.toml"))
    torch.set_default_device("cuda")
    torch.manual_seed(1)
    model = compare_pytorch.make_model(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, fused=True)
    inputs, targets = torch.randint(0, config["vocabulary"], (2, documents, length))
    parameters = sum(p.numel() for p in model.parameters())

    def step(compute):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compute(inputs, targets) / targets.numel()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    for kind, compute in (("eager", model), ("compiled", torch.compile(model))):
        losses = [step(compute) for _ in range(3)]
        seconds = []
        while len(seconds) < 5 or sum(seconds) < 2:
            begin = time.perf_counter()
            losses.append(step(compute))
            seconds.append(time.perf_counter() - begin)
        step_s = statistics.median(seconds)
        print(f"training {name:<10} {'PyTorch,' + kind:<16} {targets.numel() / step_s:>10.0f} tokens/s {parameters} parameters "
              f"({documents} x {length} tokens a step of {1e3 * step_s:.1f} ms, loss {losses[0]:.3f} to {losses[-1]:.3f})",
              flush=True)


if __name__ == "__main__":
    print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}", flush=True)
    if sys.argv[1:] == ["operations"]:
        product()
        attention(12, 64)
        attention(16, 128)
    elif len(sys.argv) == 3 and sys.argv[1] == "train" and sys.argv[2] in BATCHES:
        train(sys.argv[2])
    else:
        sys.exit("usage: pytorch_rates.py operations | train " + "|".join(BATCHES))
