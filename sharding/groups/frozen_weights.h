// SPDX-License-Identifier: Apache-2.0
#pragma once
// `FrozenWeights` says in what weights rest that are not trained, as the base
// of adapters is not.

#include "tessera/runtime/kernels/block_format.h"

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// [Note: frozen weights in blocks] A page whose weights rest in blocks with a
/// scale each is kept, all-gathered, offloaded and read from files of shards in
/// these blocks. It is expanded in its slot when operators use it: they see
/// weights of the type that they would have otherwise, with the values that the
/// blocks stand for. What is read outside of operators, and written to
/// checkpoints and folders, are these values; reading and writing them changes
/// nothing more. The bits do not depend on how many ranks divide the page.
enum class FrozenWeights {
  kNone, ///< as they are
  kNf4, ///< 4.5 bits: NF4 in blocks of 64 (QLoRA, arXiv:2305.14314)
  kNf4Double, ///< 4.13 bits: the scales are quantized too
  kInt8, ///< 8.25 bits: blocks of 128
  kFp8, ///< 8.25 bits: e4m3 in blocks of 128
};

struct PrecisionPolicy;

} // namespace tessera

namespace tessera::sharding {

class ModuleChoices;
struct ParameterRecord;

/// The blocks; none: as they are.
std::optional<runtime::BlockFormat> format_of(FrozenWeights weights);

/// The name of a choice: "nf4", ...
std::string name_of(FrozenWeights weights);

/// All of them with their names.
const std::vector<std::pair<std::string, FrozenWeights>>& all_frozen_weights();

/// Sets ParameterRecord::frozen_weights. PrecisionPolicy's is for the weights
/// of linear layers, without vocabulary heads: those with as many results as an
/// embedding has rows. ModuleOptions' is for all weights in the module that
/// have at least two dimensions. Nothing that is trained is ever chosen, nor
/// what shares a storage with it.
void choose_frozen_weights(
    const torch::nn::Module& module,
    const PrecisionPolicy& policy,
    const ModuleChoices& choices,
    std::vector<ParameterRecord>& records);

} // namespace tessera::sharding
