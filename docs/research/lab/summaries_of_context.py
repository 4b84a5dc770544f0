"""Repeat the synthetic tables of BumbleBee (appendix B) at a smaller size.

    python docs/research/lab/summaries_of_context.py --steps 20000 --epochs 10

The inputs are random vectors. A random transformer of one layer computes each output from the
`NEAR` inputs before it and from `NEAR` earlier ones that change once per episode, the summary. Then
three models of the same shape learn the outputs: from both, from the inputs before alone, from the
summary alone; and one from ten times as many inputs before. The script prints mean squared errors
on held-out outputs, divided by the variance of the outputs: 1 is to predict the mean.
"""

import argparse
import time

import torch
from torch import Tensor, nn

NEAR, WIDTH = 32, 16
"""Inputs in the local context and in the summary; numbers of an input."""
EPISODE = 50
"""Outputs that share one summary."""


class Reader(nn.Module):
    """An encoder of one layer, and a decoder of one layer with one learned query."""

    def __init__(self, places: int) -> None:
        super().__init__()
        shape = {"d_model": WIDTH, "nhead": 4, "dim_feedforward": 64, "dropout": 0.0}
        self.encoder = nn.TransformerEncoderLayer(**shape, batch_first=True)  # type: ignore[arg-type]
        self.decoder = nn.TransformerDecoderLayer(**shape, batch_first=True)  # type: ignore[arg-type]
        self.places = nn.Parameter(torch.randn(places, WIDTH) / 4)
        self.query = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, inputs: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return an output [b] of inputs [b, places, WIDTH]; `hidden` [places] masks some."""
        mask = None if hidden is None else hidden.expand(len(inputs), -1)
        read = self.encoder(inputs + self.places, src_key_padding_mask=mask)
        query = self.query.expand(len(inputs), -1, -1)
        return self.out(self.decoder(query, read, memory_key_padding_mask=mask))[:, 0, 0]


def data(steps: int, reach: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return local contexts [n, reach, WIDTH], summaries [n, NEAR, WIDTH] and outputs [n]."""
    inputs = torch.randn(steps + reach + NEAR, WIDTH)
    first = reach + NEAR
    places = torch.arange(first, first + steps)
    local = inputs.unfold(0, reach, 1).transpose(1, 2)[places - reach]
    drawn = [torch.randint(0, int(at) - reach, (NEAR,)).sort().values for at in places[::EPISODE]]
    summary = inputs[torch.stack(drawn).repeat_interleave(EPISODE, 0)[:steps]]
    truth = Reader(2 * NEAR).requires_grad_(False)
    pairs = torch.cat([summary, local[:, -NEAR:]], 1).split(1000)
    return local, summary, torch.cat([truth(part) for part in pairs])


def error(inputs: Tensor, outputs: Tensor, epochs: int, seed: int) -> float:
    """Return the held-out error of a model that learns 8 of 10 parts; it stops by the ninth."""
    torch.manual_seed(seed)
    model = Reader(inputs.shape[1])
    outputs = (outputs - outputs.mean()) / outputs.std()
    tenth = len(inputs) // 10
    train, choice, test = (torch.arange(a, b) for a, b in (
        (0, 8 * tenth), (8 * tenth, 9 * tenth), (9 * tenth, 10 * tenth),
    ))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    best = (float("inf"), float("inf"))
    for _ in range(epochs):
        for part in train[torch.randperm(len(train))].split(128):
            loss = (model(inputs[part]) - outputs[part]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            now = [
                torch.cat([(model(inputs[p]) - outputs[p]).square() for p in part.split(1000)])
                for part in (choice, test)
            ]
        best = min(best, (float(now[0].mean()), float(now[1].mean())))
    return best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000, help="outputs; 80,000 in the paper")
    parser.add_argument("--epochs", type=int, default=10, help="50 in the paper")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--wide", action="store_true", help="also ten times the local context")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(args.seeds):
        torch.manual_seed(seed)
        local, summary, outputs = data(args.steps, 10 * NEAR)
        near = local[:, -NEAR:]
        kinds = {
            "both": torch.cat([summary, near], 1), "local context": near, "summary": summary,
        }  # fmt: skip
        if args.wide:
            kinds["ten times the local context"] = local
        for name, inputs in kinds.items():
            started = time.process_time()
            found = error(inputs, outputs, args.epochs, seed)
            spent = time.process_time() - started
            print(f"seed {seed}  {name:28} error {found:.3f}  {spent:.0f} s", flush=True)


if __name__ == "__main__":
    main()
