// SPDX-License-Identifier: Apache-2.0
#pragma once
// `measure_training_operators()` measures the operators of training steps on
// the CPU.

#include "tessera/planner/operator_rates.h"

#include <cstdint>

namespace tessera::tools {

/// Trains newly initialized models of the zoo for a few steps each, with what a
/// step has in a run, caches and gradients included, in float32, bfloat16 and
/// float32 with rounded factors (CpuMatmul::kBfloat16), where the processor
/// can: GPT-2, LLaMA, BERT with dropout, T5, ViT and Qwen3-MoE, of two layers
/// and sequences of 256. Takes each call's median over the steps, and its work
/// from a dry run. Writes and removes a folder of temporary files. Joins a job
/// of one rank.
/// @param features of a model; a multiple of 64.
planner::MeasuredSteps measure_training_operators(int64_t features);

} // namespace tessera::tools
