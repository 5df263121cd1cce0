#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the tests notice a broken engine.

    mutations.py [--build build/release] [--only NAME ...] [--list] [--waits]

Breaks the sources of one library in one place at a time, rebuilds that library
in a folder of its own, and runs the tests that have to notice. Each must pass
with the library as it is, and fail, or hang, with the broken one. The sources
and the build are not changed; the build must be complete and up to date.

With --waits it leaves out, one at a time, what orders streams (stream_waits.py),
and runs the tests of the virtual device.

Exits with 1 when a mutation survives, no longer applies or does not compile,
and when a text of --only is in no name.
"""

import argparse
import concurrent.futures
import dataclasses
import difflib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zlib

from stream_waits import WAITS

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEST_SECONDS = 300
WAIT_SECONDS = 900
QUICK_TESTS = (
    "--gtest_filter=*LaneMemory*eager:*StreamedUpdates*eager:*Stores*:"
    "*BetweenSteps*eager:*Streams*eager:*Gradients*eager*:*Activations*eager*:"
    "*Placement*eager_1*"
)


@dataclasses.dataclass
class Mutation:
    name: str
    file: str
    old: str  # found once; runs of white space are as good as each other
    new: str
    tests: str  # a GoogleTest filter
    program: str = "engine_tests"


PARITY = "*/ParityTest.*/OddSizesOn2:*/ParityTest.*/OddSizesOn3"
ACCUMULATION = "*/ParityBatchTest.ThreeMicroBatches*/GptOn2"

MUTATIONS = [
    Mutation(
        "gradients are not reduced",
        "sharding/pages/gradient_bucket_slot.cpp",
        "pending_ = communicator.reduce_scatter_sum(reduced_, collected_, label);",
        "reduced_.copy_(collected_.narrow(0, self_span.begin, self_span.numel));"
        " reduced_.mul_(ranks_);",
        PARITY,
    ),
    Mutation(
        "sum over the ranks in place of the mean",
        "sharding/pages/gradient_bucket_slot.cpp",
        "if (!divides_first() && ranks_ > 1) {",
        "if (false) {",
        PARITY,
    ),
    Mutation(
        "a page stays as it was before the step",
        "sharding/paging/unsharder.cpp",
        "for (const auto& page : context_.pages) { reshard(*page);",
        "for (const auto& page : context_.pages)"
        " { if (page->number() > 0) reshard(*page);",
        "*/ParitySequenceTest.*/GptOn2",
    ),
    Mutation(
        "a shard begins one element early",
        "sharding/pages/page_memory.cpp",
        "const int64_t from = self_span.begin + segment.shard_offset - span.begin;",
        "const int64_t from ="
        " std::max<int64_t>(0, self_span.begin + segment.shard_offset - span.begin - 1);",
        PARITY,
    ),
    Mutation(
        "second moments are not saved",
        "engine/checkpoint/subject_tensors.cpp",
        "if (last_ != &state) {",
        'if (name == "exp_avg_sq") { return; } if (last_ != &state) {',
        "*/Resume.IsBitEqualWithEveryOptimizer/*",
    ),
    Mutation(
        "the previous gradients of Adan are not saved",
        "engine/checkpoint/subject_tensors.cpp",
        "if (last_ != &state) {",
        'if (name == "previous_grad") { return; } if (last_ != &state) {',
        "*/Reshard.AnyWorldReadsThePreviousGradientsOfAdan/*",
    ),
    Mutation(
        "steps of optimizers count from 2",
        "engine/optim/update_method.h",
        "step.step = parameter.steps;",
        "step.step = parameter.steps + 1;",
        "*/OptimizerReference.Adan/*",
    ),
    Mutation(
        "clips by the norm of this rank's shard",
        "sharding/paging/gradient_norm.cpp",
        "pager.ranks().sum(of_ranks); double sum",
        "double sum",
        "*/ParityBatchTest.ThreeMicroBatchesClipped/GptOn2",
    ),
    Mutation(
        "an overflow skips the step of the rank that has it only",
        "sharding/paging/gradient_norm.cpp",
        "pager.sum_over_ranks(all);",
        "",
        "ExpertTraining.AnOverflowInOneExpertSkipsTheStepOfAll",
        "zoo_tests",
    ),
    Mutation(
        "experts of other ranks count as this rank's in sums over shards",
        "sharding/pages/page_ranks.cpp",
        "if (mesh.has(kPartAxis)) {",
        "if (false) {",
        "ExpertPages.AreThoseOfTheRanksWithTheSameExpert",
        "sharding_tests",
    ),
    Mutation(
        "experts start from those of rank 0",
        "sharding/pages/page_ranks.cpp",
        "parameter.record.name(), &ranks.of(page)",
        "parameter.record.name(), &ranks.of_module()",
        "ExpertPages.AreThoseOfTheRanksWithTheSameExpert",
        "sharding_tests",
    ),
    Mutation(
        "several replicas hold the same part",
        "engine/checkpoint/model_tensors.cpp",
        "if (has_elements && !is_copy) {",
        "if (has_elements) {",
        "ModelTensors.EveryElementIsHeldOnce",
        "engine_tests",
    ),
    Mutation(
        "clips by the norm of this rank's shard on a device",
        "sharding/paging/gradient_norm.cpp",
        "reduce(mesh->shards(), local);",
        "",
        "AllOrders/Gradients.ClippedHaveTheNumbersOfTheCpu/*",
        "vdev_tests",
    ),
    Mutation(
        "experts of other ranks are not in a norm on a device",
        "sharding/paging/gradient_norm.cpp",
        "if (mesh->parts() != nullptr) {",
        "if (false) {",
        "All/DividedNorms.*/experts*",
        "vdev_tests",
    ),
    Mutation(
        "other parts of a model are not in a norm on a device",
        "sharding/paging/gradient_norm.cpp",
        "pager.ranks().sum_over_model(total); return total.pow_",
        "return total.pow_",
        "All/DividedNorms.*/tensor*",
        "vdev_tests",
    ),
    Mutation(
        "a largest gradient that is no number is lost on a device",
        "sharding/paging/gradient_norm.cpp",
        "return at::where(flagged[1] > 0, std::nan(\"\"), flagged[0]);",
        "return flagged[0];",
        "All/DividedNorms.AreNotNumbers*",
        "vdev_tests",
    ),
    Mutation(
        "what several ranks have of a model counts on each",
        "sharding/pages/page_spec.cpp",
        "return !is_later_copy &&",
        "return is_later_copy ||",
        "Meshes/MeshTraining.*",
    ),
    Mutation(
        "clipping waits for the device",
        "engine/engine.cpp",
        "? clip_factor(norm.on_device(), max_norm, skips)",
        "? clip_factor(norm.value(), max_norm, skips)",
        "AllOrders/Gradients.ClippingAndStepDoNotWaitForTheDevice/*",
        "vdev_tests",
    ),
    Mutation(
        "a norm that is not finite scales gradients that are skipped",
        "engine/engine.cpp",
        "skips ? factor.masked_fill_(norm.isfinite().logical_not_(), 1) : factor",
        "skips ? factor.mul_(0) : factor",
        "AllOrders/Gradients.AStepWhoseGradientsOverflowIsSkipped/*",
        "vdev_tests",
    ),
    Mutation(
        "updates ignore the factor on the device",
        "engine/optim/sharded_optimizer.cpp",
        "parameter.grad_factor = bucket.deferred_factor().on_device();",
        ";",
        "AllOrders/Gradients.ClippedHaveTheNumbersOfTheCpu/*",
        "vdev_tests",
    ),
    Mutation(
        "ranks agree on gradients again after clipping",
        "sharding/paging/gradient_agreement.cpp",
        "stated.is_settled = is_settled();",
        "stated.is_settled = false;",
        "Worlds/Clipping.RanksAgreeOnGradientsOncePerStep/*",
    ),
    Mutation(
        "what another rank changes after clipping is not seen",
        "sharding/paging/gradient_agreement.cpp",
        "const bool all_settled = reducer_.agree(stated);",
        "reducer_.agree(stated);"
        " const bool all_settled = stated.is_settled;",
        "Worlds/Clipping.AGradientThatOneRankSetsAfterwardsCounts/*",
    ),
    Mutation(
        "kept gradients overwrite those of the micro-batch before",
        "sharding/pages/gradient_bucket_slot.cpp",
        "runtime::pack_segments_(added, packing_factor(), runtime::PackMode::kAdd);",
        "runtime::pack_segments_(added, packing_factor());",
        "AllOrders/Gradients.AccumulatedHaveTheBitsOfTheCpu/*",
        "vdev_tests",
    ),
    Mutation(
        "what a user adds to a gradient is kept",
        "sharding/paging/gradient_reducer.cpp",
        "add(entry.position, gradient, keeps);",
        "add(entry.position, gradient, true);",
        "AllOrders/Gradients.AccumulatedHaveTheBitsOfTheCpu/*",
        "vdev_tests",
    ),
    Mutation(
        "pinned memory has no pages yet",
        "offload/stores/host_memory.cpp",
        "runtime::populate_memory(data, size, runtime::update_pool());",
        ";",
        "StoreFaults.PinnedMemoryHasItsPagesAndIsUnpinned",
        "offload_tests",
    ),
    Mutation(
        "recomputes with other random numbers",
        "sharding/checkpointing/checkpoint.cpp",
        "state(call.random, call.autocast);",
        "state(call.random.now(), call.autocast);",
        "ActivationOffload.CheckpointedBlocksInsideAndTheirInputsOnTheHost",
    ),
    Mutation(
        "prefetches one group late",
        "sharding/plans/residency_plan.cpp",
        "prefetch(i, i + 1, entry.groups, entry.after);",
        "prefetch(i, i, {}, entry.after);",
        "*/ResidencyTest.NoGatherOnDemand*/GptOn2",
    ),
    Mutation(
        "a micro-batch overwrites the gradients of the one before",
        "sharding/pages/gradient_bucket_slot.cpp",
        "runtime::pack_segments_(added, 1, runtime::PackMode::kAdd);",
        "runtime::pack_segments_(added);",
        ACCUMULATION,
    ),
    Mutation(
        "Adam decays weights as AdamW does",
        "engine/optim/optimizers/adam.cpp",
        "step.decoupled_decay = decouples_decay_;",
        "step.decoupled_decay = true;",
        "*/TorchParity.Adam/*",
    ),
    Mutation(
        "the learning rate is that of the step before",
        "engine/schedule/lr_scheduler.cpp",
        "lr_factor_at(options_, steps_)",
        "lr_factor_at(options_, steps_ > 0 ? steps_ - 1 : 0)",
        "*/TorchParity.LearningRateOfEveryStep/*",
    ),
    Mutation(
        "the loss scale is not undone",
        "engine/engine.cpp",
        "optimizer_->step(*pager_, 1 / scaler_.scale());",
        "optimizer_->step(*pager_, 1.0);",
        "Options/Matrix.*",
    ),
    Mutation(
        "copies in lower precision are not refreshed",
        "offload/updates/shard_tensors.cpp",
        "views.low_precision = stretch(low_precision, span.shard_offset);",
        ";",
        "Options/Matrix.*",
    ),
    Mutation(
        "the stages' gradients of a tied weight are not added up",
        "sharding/paging/tied_copies.cpp",
        "bucket.add_copies(*page.ranks.copies(), pager.ranks().watch_failures());",
        ";",
        "Meshes/MeshTraining.*",
    ),
    Mutation(
        "what no batch used keeps a gradient of another group",
        "sharding/pages/gradient_bucket_slot.cpp",
        "for (const runtime::FlatSpan& span : missing_spans()) {",
        "for (const runtime::FlatSpan& span : std::vector<runtime::FlatSpan>{}) {",
        "*/UnusedParametersByWorld.*:UnusedParametersTest.*",
    ),
    Mutation(
        "norms get float32 copies of activations",
        "sharding/interception/page_faults.cpp",
        "if (call_mixed_norm(op, *dtype, *stack)) {",
        "if (false) {",
        "All/NormsInFloat32.*",
    ),
    Mutation(
        "counting the choices of experts waits for the device",
        "sharding/expert_parallel/expert_router.cpp",
        "return at::zeros({experts}, flat.options())"
        " .scatter_add_(0, flat, at::ones_like(flat));",
        "return flat.bincount({}, experts);",
        "AllOrders/Experts.*",
        "vdev_tests",
    ),
    Mutation(
        "gradients of whole tensors that meet parts are not summed",
        "sharding/tensor_parallel/dtensor.cpp",
        "? copy_to_group(full, group) : full;",
        "? full : full;",
        "DTensor.AModelOfAStranger*",
        "sharding_tests",
    ),
    Mutation(
        "parts of activations drop by themselves",
        "sharding/tensor_parallel/dtensor_random.cpp",
        "? make_dtensor( dropped_part(local, probability, *wrapper),",
        "? make_dtensor( at::dropout(local, probability, true),",
        "DTensor.DropsWhatOneRankDrops",
        "sharding_tests",
    ),
    Mutation(
        "every rank attends to the first keys",
        "sharding/tensor_parallel/local_heads.cpp",
        "return full.narrow(kHeads, first, last - first + 1);",
        "return full.narrow(kHeads, 0, last - first + 1);",
        "DTensor.FewerKeyHeadsThanRanks",
        "sharding_tests",
    ),
    Mutation(
        "a view across parts may be written",
        "sharding/tensor_parallel/dtensor_general.cpp",
        "!x.is_copy(),",
        "true,",
        "DTensor.RefusesWhatWouldBeLost",
        "sharding_tests",
    ),
    Mutation(
        "autograd of a part does not reach its wrapper",
        "sharding/tensor_parallel/dtensor.cpp",
        "node->set_next_edges(torch::autograd::collect_next_edges(x));",
        ";",
        "DTensor.CustomFunctions*",
        "sharding_tests",
    ),
    Mutation(
        "declared layers draw random numbers",
        "zoo/layers/linear.cpp",
        "undrawn.emplace(0);",
        ";",
        "DeclaredLayers.*",
        "zoo_tests",
    ),
    Mutation(
        "groups of parameters have the options of all",
        "engine/engine_optimizer.cpp",
        "engine.set_parameter_options(parameter, local);",
        ";",
        "EngineOptimizer.*LibTorchs",
    ),
    Mutation(
        "an optimizer object keeps the options of wrap()",
        "engine/optim/sharded_optimizer.cpp",
        "settings.rule = *rule.rule; settings.rule_version = rule_version;",
        ";",
        "EngineOptimizer.*LibTorchs",
    ),
    Mutation(
        "frequencies are copied from memory that is not pinned",
        "zoo/layers/rotary.cpp",
        "runtime::to_device(frequencies.inverse, position_ids.device())",
        "frequencies.inverse.to(position_ids.device())",
        "Positions.*",
        "vdev_tests",
    ),
    Mutation(
        "attention with a mask gets grouped heads on devices",
        "zoo/layers/attention_function.cpp",
        "return mask.defined() && !runtime::computes_on_cpu(call.query.device());",
        "return false;",
        "FusedAttention.*",
        "vdev_tests",
    ),
    Mutation(
        "blocks of frozen weights begin anywhere in a shard",
        "sharding/pages/page_spec.cpp",
        "alignment = std::max(alignment, page.resting_format->unit_numel());",
        "alignment = std::max<int64_t>(alignment, 1);",
        "FrozenPages/*",
    ),
    Mutation(
        "operators see what was written to frozen weights, and not its blocks",
        "sharding/paging/gather_scopes.cpp",
        "page.ranks.is_divided() || page.spec().resting_format.has_value();",
        "page.ranks.is_divided();",
        "FrozenPages.WrittenValuesAreRoundedToBlocks",
    ),
    Mutation(
        "the memory table has no row of libraries",
        "engine/engine_setup.cpp",
        "const int64_t libraries = engine::library_bytes(world, device);",
        "const int64_t libraries = 0;",
        "LibraryMemory.*",
        "vdev_tests",
    ),
    Mutation(
        "a page's gradients are averaged over another page's mesh",
        "sharding/paging/pager.cpp",
        "page->ranks.replicas(),",
        "context_.ranks->of_module().replicas(),",
        "PagesOfTwoMeshes.*",
        "sharding_tests",
    ),
    Mutation(
        "a gradient bucket does anything in any state",
        "sharding/pages/gradient_bucket_slot.cpp",
        "state_ == from,",
        "true,",
        "GradientBucket.*",
        "sharding_tests",
    ),
    Mutation(
        "the optimizer's state is not in the memory plan",
        "engine/memory/memory_plan.cpp",
        "MemoryPlan plan{.bytes = needs.optimizer, .slots = {}};",
        "MemoryPlan plan{};",
        "Worlds/Placement.OfAdamWStateChangesNoBit/0",
    ),
    Mutation(
        "gradients of the first step have no room in the budget",
        "engine/memory/memory_plan.cpp",
        "options.memory.activation_bytes - first_step -",
        "options.memory.activation_bytes -",
        "*/UpdateInBackward.TheFirstStepStaysWithinTheBudget/*",
    ),
    Mutation(
        "NCCL's defaults are not set",
        "runtime/comm/nccl_registry.cpp",
        "set_defaults(); auto backend =",
        "auto backend =",
        "NcclRegistry.*",
        "runtime_tests",
    ),
    Mutation(
        "gradients that others hold are written over",
        "runtime/memory/spent_gradients.cpp",
        "gradient.use_count() != static_cast<size_t>(holders) ||",
        "",
        "SpentGradients.*",
        "runtime_tests",
    ),
    Mutation(
        "gradients that views share are written over",
        "runtime/memory/spent_gradients.cpp",
        "gradient.storage().use_count() != 1 ||",
        "",
        "SpentGradients.*",
        "runtime_tests",
    ),
    Mutation(
        "gradients in memory of others are written over",
        "runtime/memory/spent_gradients.cpp",
        "gradient.storage().allocator() == nullptr ||",
        "",
        "SpentGradients.*",
        "runtime_tests",
    ),
    Mutation(
        "gradients of callers other than autograd are written over",
        "runtime/memory/spent_gradients.cpp",
        "caller != nullptr && caller->name() == node",
        "true",
        "SpentGradients.*",
        "runtime_tests",
    ),
    Mutation(
        "gradients of another dtype are written over",
        "runtime/memory/spent_gradients.cpp",
        "gradient.scalar_type() != dtype ||",
        "",
        "SpentGradients.*",
        "runtime_tests",
    ),
    Mutation(
        "gradients with other strides are written over",
        "runtime/memory/spent_gradients.cpp",
        "!gradient.is_contiguous() || !kept.is_contiguous() ||",
        "",
        "SpentGradients.*",
        "runtime_tests",
    ),
    Mutation(
        "gradients with a graph are written over",
        "runtime/memory/spent_gradients.cpp",
        "|| at::GradMode::is_enabled()",
        "",
        "SpentGradients.*",
        "runtime_tests",
    ),
    Mutation(
        "step() waits for the updates of pages that are not gathered",
        "sharding/paging/step_executor.cpp",
        "unsharder_.let_update_go_on(*page);",
        "unsharder_.settle_unpaged();",
        "Worlds/OverlapForward.RunsWhileUpdatesOfLaterLayersWait/*",
    ),
    Mutation(
        "a page is used while it is under update",
        "sharding/paging/unsharder.cpp",
        "if (page.is_under_update()) { settle_shard(page); }",
        "if (page.is_under_update()) { page.end_update({}); }",
        "Worlds/OverlapForward.ReadersOutsideOfStepsWait/*",
    ),
    Mutation(
        "memory is read while its page is under update",
        "sharding/pages/page_memory.cpp",
        "storage->forbid_reads(formatted(",
        "static_cast<void>(formatted(",
        "Worlds/OverlapForward.ReadersOutsideOfStepsWait/*",
    ),
    Mutation(
        "the next update's gradient is not fetched ahead",
        "offload/updates/page_updates.cpp",
        "next->begin_fetch(waiting->gradient);",
        "next->begin_fetch();",
        "OverlappedUpdates.FetchTheGradientOfTheNextOne",
        "vdev_tests",
    ),
    Mutation(
        "updates have the priority of gathers",
        "offload/updates/update_queue.cpp",
        "lane_(device, runtime::LanePriority::kLow)",
        "lane_(device)",
        "LanePriorities.*",
        "vdev_tests",
    ),
    Mutation(
        "copies are measured beside an idle CPU",
        "offload/stores/transfer_rates.cpp",
        "directions_[i].issue(copies[i]);",
        ";",
        "UpdateRates.AreThoseOfUpdatesAndCopiesTogether",
        "vdev_tests",
    ),
    Mutation(
        "free host memory stays where more is taken",
        "runtime/memory/host_heap.cpp",
        "resident_bytes() > peak_in_use_;",
        "false;",
        "HostHeap.*",
        "runtime_tests",
    ),
]


SWITCH = """
#ifndef TESSERA_LEFT_OUT
#define TESSERA_LEFT_OUT
#include <cstdlib>
inline bool tessera_left_out(int wait) {
  static const char* const kChosen = std::getenv("TESSERA_LEFT_OUT");
  return kChosen != nullptr && std::atoi(kChosen) == wait;
}
#endif
"""


class Failure(Exception):
    pass


def pattern_of(code):
    """A regular expression for code with any white space."""
    return r"\s+".join(re.escape(word) for word in code.split())


def place_of(pattern, file):
    """Where the only match of the last group of `pattern` is."""
    found = list(re.finditer(pattern, (ROOT / file).read_text()))
    if len(found) != 1:
        raise Failure(f"does not apply: {file} has its text {len(found)} times")
    return found[0].span(found[0].re.groups)


def mutated(mutation):
    """The text of the broken file."""
    text = (ROOT / mutation.file).read_text()
    begin, end = place_of(pattern_of(mutation.old), mutation.file)
    return text[:begin] + mutation.new + text[end:]


def switchable(waits):
    """@return by file, its text in which TESSERA_LEFT_OUT, a number of the
    environment, leaves out that wait of the list."""
    texts = {}
    for file in dict.fromkeys(wait.file for wait in waits):
        cuts = []
        for number, wait in enumerate(waits):
            if wait.file == file:
                before = pattern_of(wait.after) + r"\s+" if wait.after else ""
                pattern = f"{before}({pattern_of(wait.statement)})"
                cuts.append((*place_of(pattern, file), number))
        text = (ROOT / file).read_text()
        for begin, end, number in sorted(cuts, reverse=True):
            text = (
                f"{text[:begin]}if (!tessera_left_out({number})) "
                f"{{ {text[begin:end]} }}{text[end:]}"
            )
        texts[file] = SWITCH + text
    return texts


class Build:
    """Makes broken libraries out of the parts of a build that is there."""

    def __init__(self, folder):
        self.folder = folder.resolve()
        self.work = self.folder / "mutations"
        self.lib = self.work / "lib"
        shutil.rmtree(self.lib, ignore_errors=True)
        self.lib.mkdir(parents=True)
        self.commands = {}

    def run(self, command):
        done = subprocess.run(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise Failure("does not compile:\n" + done.stdout[-4000:])

    def commands_of(self, library):
        """How ninja makes a library: compilations, and the link."""
        if library not in self.commands:
            self.commands[library] = subprocess.run(
                ["ninja", "-C", str(self.folder), "-t", "commands", library],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout.splitlines()
        return self.commands[library]

    def library_of(self, file):
        """The library that `file` is compiled into, and what includes it."""
        room = file.split("/")[0]
        library = f"lib/libtessera_{room}.so"
        compiled = [
            pathlib.Path(words[words.index("-c") + 1])
            for words in map(shlex.split, self.commands_of(library))
            if "-c" in words and f"tessera_{room}.dir" in " ".join(words)
        ]
        for source in compiled:
            if (
                source == ROOT / file
                or f'#include "{file}"' in source.read_text()
            ):
                return library, source
        raise Failure(f"{file} is not in {library}")

    def without_optimization(self, words):
        """A compilation of little work, from the compiler's name on."""
        compiler = next(
            i for i, word in enumerate(words) if re.search(r"(\+\+)[-0-9]*$", word)
        )
        kept = []
        words = iter(words[compiler:])
        header = None
        for word in words:
            if word in ("-o", "-c", "-MT", "-MF"):
                next(words)
            elif word == "-include":
                header = next(words)
            elif word not in ("-MD", "-Winvalid-pch") and not word.startswith(
                "-O"
            ):
                kept.append(word)
        kept += ["-O0", "-w"]
        return kept, header

    def precompiled(self, flags, header):
        """`header` for these flags. @return its new name."""
        key = f"{zlib.crc32(repr(flags).encode()):08x}"
        folder = self.work / "pch" / key
        copy = folder / pathlib.Path(header).name
        if not pathlib.Path(f"{copy}.gch").exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(header, copy)
            self.run(
                [*flags, "-x", "c++-header", str(copy), "-o", f"{copy}.gch"]
            )
        return str(copy)

    def compile(self, source, compilation, texts):
        """@param texts by file, which `source` is or includes.
        @return the object."""
        start = source
        for number, (file, text) in enumerate(texts.items()):
            # Not by its own path, which includes would find.
            broken = self.work / f"broken_{number}.cpp"
            broken.write_text(text)
            if source == ROOT / file:
                start = broken
                continue
            unity = start.read_text().replace(
                f'#include "{file}"', f'#include "{broken}"'
            )
            start = self.work / "unity.cpp"
            start.write_text(unity)
        flags, header = self.without_optimization(compilation)
        includes = (
            ["-include", self.precompiled(flags, header)] if header else []
        )
        key = f"{zlib.crc32(str(source).encode()):08x}"
        made = self.work / f"broken_{key}.o"
        self.run([*flags, *includes, "-c", str(start), "-o", str(made)])
        return str(made)

    def make(self, texts):
        """Puts the library with these texts, by file, into self.lib."""
        of_source = {}
        for file, text in texts.items():
            library, source = self.library_of(file)
            of_source.setdefault(source, {})[file] = text
        commands = [shlex.split(line) for line in self.commands_of(library)]
        link = [word for word in commands[-1] if word not in (":", "&&")]
        for source, some in of_source.items():
            compilation = next(
                words
                for words in commands
                if "-c" in words and words[words.index("-c") + 1] == str(source)
            )
            original = compilation[compilation.index("-o") + 1]
            link[link.index(original)] = self.compile(source, compilation, some)
        target = self.lib / pathlib.Path(library).name
        link[link.index("-o") + 1] = str(target)
        self.run(link)
        return target


def run_tests(build, program, arguments, seconds, environment=None):
    """@return exit code, None after `seconds`; output."""
    paths = [
        str(build.lib),
        str(build.folder / "lib"),
        os.environ.get("LD_LIBRARY_PATH", ""),
    ]
    test = subprocess.Popen(
        [str(build.folder / "bin" / program), *arguments],
        cwd=build.folder,
        env={
            **os.environ,
            **(environment or {}),
            "LD_LIBRARY_PATH": ":".join(filter(None, paths)),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # its ranks end with it
    )
    try:
        output, _ = test.communicate(timeout=seconds)
        return test.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(test.pid, signal.SIGKILL)
        output, _ = test.communicate()
        return None, output


def failed_test(output):
    found = re.search(r"^\[  FAILED  \] (\S+?),? ", output, re.MULTILINE)
    return found.group(1) if found else "the program"


def noticed_by(code, output):
    return "hangs" if code is None else failed_test(output)


def check_unbroken(build, mutations):
    """The tests must pass with each of the sources compiled as it is."""
    of_source = {}
    for mutation in mutations:
        source = build.library_of(mutation.file)[1]
        of_source.setdefault((source, mutation.program), []).append(mutation)
    for (_, program), some in of_source.items():
        filters = {mutation.tests for mutation in some}
        unbroken = (ROOT / some[0].file).read_text()
        library = build.make({some[0].file: unbroken})
        code, output = run_tests(
            build, program, ["--gtest_filter=" + ":".join(filters)], 3600
        )
        library.unlink()
        if code != 0:
            sys.exit(
                f"{program} fails without a mutation, in "
                f"{failed_test(output)}:\n{output[-4000:]}"
            )
        print(f"{program}: passes without mutations {', '.join(sorted(filters))}")
        for tests in filters:
            _, listed = run_tests(
                build,
                program,
                ["--gtest_list_tests", f"--gtest_filter={tests}"],
                TEST_SECONDS,
            )
            if not re.search(r"^  \S", listed, re.MULTILINE):
                sys.exit(f"{program} has no test {tests}")


def outcome_of(build, mutation):
    """@return what noticed. @throws Failure when nothing did."""
    library = build.make({mutation.file: mutated(mutation)})
    try:
        code, output = run_tests(
            build, mutation.program, ["--gtest_list_tests"], TEST_SECONDS
        )
        if code != 0:
            raise Failure("cannot be loaded:\n" + output[-2000:])
        code, output = run_tests(
            build,
            mutation.program,
            [f"--gtest_filter={mutation.tests}", "--gtest_fail_fast"],
            TEST_SECONDS,
        )
    finally:
        library.unlink()
    if code == 0:
        raise Failure(f"SURVIVED {mutation.tests}")
    return noticed_by(code, output)


def outcome_without(build, number):
    """What noticed that wait `number` is left out, or "SURVIVED"."""
    program, *arguments = WAITS[number].tests
    # Most are noticed by these.
    first = [QUICK_TESTS] if program == "vdev_tests" else []
    for some in [*first, None]:
        code, output = run_tests(
            build,
            program,
            [*arguments, "--gtest_fail_fast", *([some] if some else [])],
            WAIT_SECONDS,
            {"TESSERA_LEFT_OUT": str(number)},
        )
        if code != 0:
            return noticed_by(code, output)
    return "SURVIVED"


def nearness(text, name):
    """How much `text` is like a part of `name`, which may be long."""
    return max(
        difflib.SequenceMatcher(
            None, text.lower(), name[word.start() :][: len(text)].lower()
        ).ratio()
        for word in re.finditer(r"\b\w", name)
    )


def check_only(only, names):
    """Each text of --only has to be in a name."""
    for text in only:
        if not any(text in name for name in names):
            near = sorted(
                names, key=lambda name: nearness(text, name), reverse=True
            )
            sys.exit(
                f"mutations: no name has '{text}' in it; the nearest are:\n  "
                + "\n  ".join(near[:3])
            )


def leave_out_waits(build, chosen):
    """@param chosen numbers of waits.
    @return exit code."""
    files = {}
    needed = {WAITS[number].file for number in chosen}
    for file, text in switchable(WAITS).items():
        if file in needed:
            files.setdefault(file.split("/")[0], {})[file] = text
    for texts in files.values():
        build.make(texts)
    for program, *arguments in {WAITS[number].tests for number in chosen}:
        code, output = run_tests(build, program, arguments, 3600)
        if code != 0:
            sys.exit(
                f"{program} fails with all waits, in {failed_test(output)}:\n"
                f"{output[-4000:]}"
            )
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        outcomes = pool.map(lambda n: outcome_without(build, n), chosen)
        for number, outcome in zip(chosen, outcomes):
            wait = WAITS[number]
            wrong += (outcome == "SURVIVED") != bool(wait.redundant)
            note = f" (redundant: {wait.redundant})" * bool(wait.redundant)
            print(f"{wait.name} {outcome}{note}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} waits are as stated")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--build",
        type=pathlib.Path,
        default=ROOT / "build" / "release",
        help="the build, complete and up to date (default: build/release)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="take those alone whose names have one of these texts in them",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="print what there is, and build and run nothing",
    )
    parser.add_argument(
        "--waits",
        action="store_true",
        help="leave out what orders streams, in place of the mutations",
    )
    options = parser.parse_args()
    of_kind = WAITS if options.waits else MUTATIONS
    check_only(options.only, [one.name for one in of_kind])
    numbers = [
        number
        for number, one in enumerate(of_kind)
        if not options.only or any(text in one.name for text in options.only)
    ]
    if options.waits and options.list:
        for number in numbers:
            print(f"{WAITS[number].name}, {' '.join(WAITS[number].tests)}")
        return 0
    if options.waits:
        return leave_out_waits(Build(options.build), numbers)
    chosen = [MUTATIONS[number] for number in numbers]
    if options.list:
        for mutation in chosen:
            print(f"{mutation.name}: {mutation.file}, {mutation.tests}")
        return 0
    build = Build(options.build)
    check_unbroken(build, chosen)
    survivors = 0
    for mutation in chosen:
        begin = time.monotonic()
        try:
            result = "killed by " + outcome_of(build, mutation)
        except Failure as failure:
            survivors += 1
            result = str(failure)
        seconds = time.monotonic() - begin
        print(f"{mutation.name}: {result} ({seconds:.0f} s)", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations were noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
