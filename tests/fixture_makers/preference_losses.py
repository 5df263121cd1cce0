#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses of preferences and of reward models, by TRL's loss functions.

    preference_losses.py tests/zoo/fixtures/preference_losses.json

Needs torch, transformers and trl (0.24). Log-probabilities of answers, theirs
under the reference, lengths and scores are fixed numbers. The negative
log-likelihood that is added is that of each better answer, the mean over its
tokens; TRL takes that of all tokens of a micro-batch. For each case: the loss of
each pair or answer, the rewards, and the gradient of the mean loss.
"""
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
from trl import (CPOTrainer, DPOTrainer, KTOTrainer, ORPOTrainer,
                 RewardTrainer)

import fixture_file

POLICY = [-3.1, -4.2, -9.0, -2.5, -0.7, -6.25, -12.5, -11.0]
REFERENCE = [-4.0, -3.9, -8.0, -3.75, -1.5, -5.5, -11.0, -13.0]
LENGTHS = [3, 5, 4, 2, 1, 6, 8, 7]
MISMATCHED = [-8.0, -9.5, -7.25, -10.0, -6.5, -12.0, -9.0, -14.0]
MISMATCHED_REFERENCE = [-8.5, -9.75, -7.0, -11.0, -6.25, -13.0, -9.5, -14.5]
DESIRABLE = [True, True, False, True, False, False, True, True]
SCORES = [1.5, -0.25, 0.5, 2.0, -1.0, -3.0, 0.125, 0.0]
MARGINS = [0.5, 0.0, 1.5, -0.25]

DPO = {
    "sigmoid": dict(beta=0.1),
    "sigmoid_smoothed": dict(beta=0.3, label_smoothing=0.2),
    "robust": dict(beta=0.5, label_smoothing=0.1),
    "hinge": dict(beta=0.4),
    "ipo": dict(beta=0.2),
    "sigmoid_free": dict(beta=0.1, reference_free=True),
    "hinge_nll": dict(beta=0.4, nll_weight=0.7),
}
CPO = {
    "simpo": dict(beta=2.0, gamma=1.0),
    "simpo_smoothed": dict(beta=2.5, gamma=0.5, label_smoothing=0.1,
                           nll_weight=0.5),
    "cpo": dict(beta=0.1),
    "cpo_smoothed": dict(beta=0.2, label_smoothing=0.25, nll_weight=0.3),
}
ORPO = {"orpo": dict(beta=0.1), "orpo_heavy": dict(beta=1.5, nll_weight=0.5)}
KTO = {
    "kto": dict(beta=0.1),
    "kto_weighted": dict(beta=0.5, desirable_weight=1.5,
                         undesirable_weight=0.25),
    "kto_clamped": dict(beta=0.3, kl=-0.5),
}
REWARD = {
    "reward": {},
    "reward_margins": dict(margins=True),
    "reward_centered": dict(center=0.05, margins=True),
}

CPU = SimpleNamespace(
    device=torch.device("cpu"), gather_for_metrics=lambda value: value,
    gather=lambda value: value)


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.8g}") if isinstance(value, float) else value


def leaf(values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def result(losses, chosen, rejected, source):
    losses.mean().backward()
    return {"losses": losses.detach().tolist(), "chosen": chosen.tolist(),
            "rejected": rejected.tolist(), "gradient": source.grad.tolist()}


def pairs(name, options, nll_weight, scored):
    """`scored` maps log-probabilities, and whether they are the reference's."""
    means = name.split("_")[0] in ("ipo", "simpo", "orpo")
    policy = leaf(POLICY)
    lengths = torch.tensor(LENGTHS, dtype=torch.float64)
    reference = torch.tensor(REFERENCE, dtype=torch.float64)
    if options.get("reference_free"):
        reference = torch.zeros_like(reference)
    scale = lengths if means else torch.ones_like(lengths)
    losses, chosen, rejected = scored(policy / scale, reference / scale)
    losses = losses + nll_weight * -(policy / lengths)[0::2]
    return result(losses, chosen, rejected, policy)


def dpo(name, options):
    trainer = SimpleNamespace(
        accelerator=CPU, beta=options["beta"], f_divergence_type=None,
        label_smoothing=options.get("label_smoothing", 0.0),
        reference_free=options.get("reference_free", False))
    return pairs(
        name, options, options.get("nll_weight", 0.0),
        lambda policy, reference: DPOTrainer.dpo_loss(
            trainer, policy[0::2], policy[1::2], reference[0::2],
            reference[1::2], name.split("_")[0]))


def cpo(name, options):
    kind = name.split("_")[0]
    trainer = SimpleNamespace(
        accelerator=CPU, beta=options["beta"], alpha=0.0,
        loss_type="simpo" if kind == "simpo" else "sigmoid",
        simpo_gamma=options.get("gamma"),
        label_smoothing=options.get("label_smoothing", 0.0))
    return pairs(
        name, options, options.get("nll_weight", 1.0 if kind == "cpo" else 0.0),
        lambda policy, _: CPOTrainer.cpo_loss(
            trainer, policy[0::2], policy[1::2]))


def orpo(name, options):
    trainer = SimpleNamespace(accelerator=CPU, beta=options["beta"])

    def scored(policy, _):
        losses, chosen, rejected, *_ = ORPOTrainer.odds_ratio_loss(
            trainer, policy[0::2], policy[1::2])
        return -losses, chosen, rejected

    return pairs(name, options, options.get("nll_weight", 1.0), scored)


def kto(options):
    trainer = SimpleNamespace(
        accelerator=CPU, beta=options["beta"], calculate_KL=True,
        loss_type="kto", desirable_weight=options.get("desirable_weight", 1.0),
        undesirable_weight=options.get("undesirable_weight", 1.0))
    policy = leaf(POLICY)
    reference = torch.tensor(REFERENCE, dtype=torch.float64)
    mismatched = torch.tensor(MISMATCHED, dtype=torch.float64)
    other = torch.tensor(MISMATCHED_REFERENCE, dtype=torch.float64)
    if "kl" in options:
        other = mismatched - options["kl"]
    desirable = torch.tensor(DESIRABLE)
    losses, chosen, rejected, kl = KTOTrainer.kto_loss(
        trainer, policy[desirable], policy[~desirable], mismatched,
        reference[desirable], reference[~desirable], other)
    losses.mean().backward()
    # In the order of the answers.
    ordered = torch.empty(len(POLICY), dtype=torch.float64)
    rewards = torch.empty_like(ordered)
    ordered[desirable], ordered[~desirable] = losses.detach().split(
        [len(chosen), len(rejected)])
    rewards[desirable], rewards[~desirable] = chosen, rejected
    return {"losses": ordered.tolist(), "rewards": rewards.tolist(),
            "kl": kl.item(), "gradient": policy.grad.tolist()}


def reward(options):
    scores = leaf(SCORES)
    # RewardTrainer has the better answers first.
    rows = torch.cat([scores[0::2], scores[1::2]])[:, None]

    class Model:
        training = True

        def __call__(self, **inputs):
            return SimpleNamespace(logits=rows)

    model = Model()
    trainer = SimpleNamespace(
        model=model, accelerator=CPU, _total_train_tokens=0,
        _metrics={"train": defaultdict(list)},
        args=SimpleNamespace(
            center_rewards_coefficient=options.get("center")))
    inputs = {"attention_mask": torch.ones(len(SCORES), 1)}
    if options.get("margins"):
        inputs["margin"] = torch.tensor(MARGINS, dtype=torch.float64)
    loss = RewardTrainer.compute_loss(trainer, model, inputs)
    loss.backward()
    return {"loss": loss.item(), "gradient": scores.grad.tolist()}


def main(out):
    cases = {}
    for makes, options in ((dpo, DPO), (cpo, CPO), (orpo, ORPO)):
        for name, case in options.items():
            cases[name] = {"options": case} | makes(name, case)
    unpaired = {name: {"options": case} | kto(case)
                for name, case in KTO.items()}
    rewards = {name: {"options": case} | reward(case)
               for name, case in REWARD.items()}
    fixture_file.write(out, rounded({
        "policy": POLICY, "reference": REFERENCE, "lengths": LENGTHS,
        "pairs": cases, "desirable": DESIRABLE, "mismatched": MISMATCHED,
        "mismatched_reference": MISMATCHED_REFERENCE, "unpaired": unpaired,
        "scores": SCORES, "margins": MARGINS, "rewards": rewards}))


main(Path(sys.argv[1]))
