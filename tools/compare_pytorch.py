"""PyTorch's side of tools/compare_pytorch, and the table of both.

    compare_pytorch.py train DECK [--lengths N,N,...] [--layout batch|single|padded] [--compile] [--bf16] ...
    compare_pytorch.py report FOLDER

`train` builds the model of a deck as HAT defines it (include/hat/model/layout.hpp), trains it on random tokens and
prints one JSON object. Forward, backward, clipping to global norm 1 and AdamW make a step. `report` reads what both
programs printed (FOLDER/<model>.<round>.<program>.json) and prints the ratios.
"""

import argparse
import json
import pathlib
import resource
import statistics
import sys
import time
import tomllib

GIB = 2.0**30


def read_model(deck):
    with open(deck, "rb") as file:
        model = tomllib.load(file)["model"]
    model.setdefault("kv_heads", model["heads"])
    if "mlp_width" not in model:
        usual = 4 * model["width"] if model["family"] == "gpt2" else (8 * model["width"] // 3 + 31) // 32 * 32
        model["mlp_width"] = usual
    model.setdefault("norm_epsilon", 1e-5)
    model.setdefault("rope_base", 10000.0)
    if not model.get("tied"):
        sys.exit(f"compare_pytorch.py: {deck}: only tied heads are compared")
    return model


def make_model(m):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    C, H, K, FF = m["width"], m["heads"], m["kv_heads"], m["mlp_width"]
    D = C // H
    gpt2 = m["family"] == "gpt2"

    def norm():
        return nn.LayerNorm(C, eps=m["norm_epsilon"]) if gpt2 else nn.RMSNorm(C, eps=m["norm_epsilon"])

    def rotate(x, cosine, sine):
        a, b = x[..., : D // 2], x[..., D // 2 :]
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention_norm, self.mlp_norm = norm(), norm()
            self.qkv = nn.Linear(C, C + 2 * K * D, bias=gpt2)
            self.o = nn.Linear(C, C, bias=gpt2)
            self.up = nn.Linear(C, FF if gpt2 else 2 * FF, bias=gpt2)  # Llama: gate and up in one product
            self.down = nn.Linear(FF, C, bias=gpt2)

        def forward(self, x, cosine, sine):
            documents, length, _ = x.shape
            heads = self.qkv(self.attention_norm(x)).view(documents, length, H + 2 * K, D).transpose(1, 2)
            q, k, v = heads.split([H, K, K], 1)
            if not gpt2:
                q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=K != H)
            x = x + self.o(y.transpose(1, 2).reshape(documents, length, C))
            h = self.up(self.mlp_norm(x))
            if gpt2:
                return x + self.down(F.gelu(h, approximate="tanh"))
            gate, up = h.split(FF, -1)
            return x + self.down(F.silu(gate) * up)

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(m["vocabulary"], C)
            if gpt2:
                self.positions = nn.Embedding(m["max_length"], C)
            self.layers = nn.ModuleList(Layer() for _ in range(m["layers"]))
            self.norm = norm()
            for tensor in self.parameters():
                if tensor.dim() > 1:
                    nn.init.normal_(tensor, std=0.02)
            for layer in self.layers:
                for linear in (layer.qkv, layer.o, layer.up, layer.down):
                    if linear.bias is not None:
                        nn.init.zeros_(linear.bias)

        def forward(self, inputs, targets):
            """Sum of the targets' nats; a negative target is not counted."""
            position = torch.arange(inputs.shape[1])
            x = self.tokens(inputs)
            cosine = sine = None
            if gpt2:
                x = x + self.positions(position)
            else:
                angle = position[:, None] * m["rope_base"] ** (-torch.arange(0, D, 2).float() / D)
                cosine, sine = angle.cos(), angle.sin()
            for layer in self.layers:
                x = layer(x, cosine, sine)
            logits = F.linear(self.norm(x), self.tokens.weight)
            return F.cross_entropy(logits.view(-1, m["vocabulary"]), targets.view(-1), ignore_index=-1, reduction="sum")

    return Transformer()


def make_units(lengths, layout, vocabulary):
    """(inputs, targets) that are computed one after the other before the update."""
    import torch

    documents = [torch.randint(0, vocabulary, (n + 1,)) for n in lengths]
    if layout == "single":
        return [(d[None, :-1], d[None, 1:]) for d in documents]
    inputs = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    targets = torch.full_like(inputs, -1)
    for i, d in enumerate(documents):
        inputs[i, : lengths[i]] = d[:-1]
        targets[i, : lengths[i]] = d[1:]
    return [(inputs, targets)]


def train(options):
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    m = read_model(options.deck)
    lengths = [int(n) for n in options.lengths.split(",")]
    model = make_model(m)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [dict(params=decayed, weight_decay=0.1), dict(params=others, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    compute = torch.compile(model) if options.compile else model
    units = make_units(lengths, options.layout, m["vocabulary"])
    losses, seconds = [], []
    for _ in range(options.warm_ups + options.runs):
        start = time.perf_counter()
        nats = 0.0
        for inputs, targets in units:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.bf16):
                loss = compute(inputs, targets) / sum(lengths)
            loss.backward()
            nats += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
        losses.append(nats)
    counted = seconds[options.warm_ups :]
    result = dict(
        deck=options.deck, layout=options.layout, compile=options.compile, bf16=options.bf16, threads=options.threads,
        torch=torch.__version__, parameters=sum(p.numel() for p in model.parameters()), tokens=sum(lengths),
        step_s=dict(median=statistics.median(counted), least=min(counted), most=max(counted)),
        tokens_per_s=sum(lengths) / statistics.median(counted), loss=dict(first=losses[0], last=losses[-1]),
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    print(json.dumps(result))


def read_results(folder):
    """{model: {round: {program: result}}}; a result is HAT's or PyTorch's JSON, or {"failed": reason}."""
    results = {}
    for file in sorted(pathlib.Path(folder).glob("*.json")):
        model, turn, program = file.stem.split(".")
        results.setdefault(model, {}).setdefault(int(turn), {})[program] = json.loads(file.read_text())
    return results


def tokens_per_s(result):
    if "failed" in result:
        return None
    return result["batches"][0]["tokens_per_s"] if "batches" in result else result["tokens_per_s"]


def median_of(rounds, program, value):
    found = [value(r[program]) for r in rounds.values() if program in r and "failed" not in r[program]]
    return statistics.median(found) if found else None


def check_same(model, rounds):
    """Both programs must have trained the same thing."""
    hat = next(r["hat"] for r in rounds.values())
    for r in rounds.values():
        for program, result in r.items():
            if program == "hat" or "failed" in result:
                continue
            if result["parameters"] != hat["model"]["parameters"] or result["tokens"] != hat["batches"][0]["tokens"]:
                sys.exit(f"compare_pytorch.py: {model}: HAT has {hat['model']['parameters']} parameters and "
                         f"{hat['batches'][0]['tokens']} tokens, PyTorch ({program}) {result['parameters']} and "
                         f"{result['tokens']}")


NAMES = dict(hat="HAT", eager="PyTorch, eager", compiled="PyTorch, torch.compile",
             single="PyTorch, one document at a time", padded="PyTorch, padded batch")


def report_model(model, rounds):
    check_same(model, rounds)
    hat = next(r["hat"] for r in rounds.values())
    batch = hat["batches"][0]
    flop_per_token = batch["flop"] / batch["tokens"]
    peaks = [r["hat"]["peak"][hat["precision"]]["gflops"] for r in rounds.values()]
    peak = max(peaks) if None not in peaks else None  # a build without the instruction
    print(f"\n{model}: {hat['model']['parameters']:,} parameters, {batch['documents']} documents, "
          f"{batch['tokens']:,} tokens a step, {hat['precision']}, {hat['threads']} threads; "
          f"multiply-add peak {f'{peak:.0f}' if peak else 'unknown,'} GFLOP/s")
    print(f"  {'':<34}{'tokens/s':>10}{'GFLOP/s':>10}{'% of peak':>11}{'peak memory':>14}")
    programs = [p for p in NAMES if any(p in r for r in rounds.values())]
    speed = {}
    for program in programs:
        failures = [r[program]["failed"] for r in rounds.values() if program in r and "failed" in r[program]]
        speed[program] = median_of(rounds, program, tokens_per_s)
        if speed[program] is None:
            print(f"  {NAMES[program]:<34}{failures[0]}")
            continue
        gflops = speed[program] * flop_per_token / 1e9
        memory = median_of(rounds, program,
                           lambda r: r["memory"]["peak_bytes"] if "memory" in r else r["peak_bytes"]) / GIB
        print(f"  {NAMES[program]:<34}{speed[program]:>10.1f}{gflops:>10.1f}{f'{100 * gflops / peak:.1f}' if peak else '-':>11}"
              f"{memory:>10.2f} GiB")
    others = {p: s for p, s in speed.items() if p != "hat" and s is not None}
    if not others:
        return None
    better = max(others, key=others.get)
    ratios = [tokens_per_s(r["hat"]) / tokens_per_s(r[better]) for r in rounds.values()
              if better in r and "failed" not in r[better]]
    ratio = statistics.median(ratios)
    print(f"  HAT / {NAMES[better]}: {ratio:.2f}" + (f" (rounds {min(ratios):.2f} to {max(ratios):.2f})"
                                                      if len(ratios) > 1 else ""))
    return ratio


def report(options):
    results = read_results(options.folder)
    ratios = {model: report_model(model, rounds) for model, rounds in results.items()}
    print("\nHAT / PyTorch's better mode, tokens/s (median of the rounds)")
    for model, ratio in ratios.items():
        print(f"  {model:<34}" + (f"{ratio:>10.2f}" if ratio else "      PyTorch did not run"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("deck")
    training.add_argument("--lengths", default="1024,1024,1024,1024", help="of the documents, in tokens")
    training.add_argument("--layout", choices=["batch", "single", "padded"], default="batch")
    training.add_argument("--threads", type=int, default=2)
    training.add_argument("--warm-ups", type=int, default=2)
    training.add_argument("--runs", type=int, default=3)
    training.add_argument("--compile", action="store_true")
    training.add_argument("--bf16", action="store_true", help="autocast")
    training.set_defaults(run=train)
    reporting = commands.add_parser("report")
    reporting.add_argument("folder")
    reporting.set_defaults(run=report)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
