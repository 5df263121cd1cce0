// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights from safetensors into a module: whole, lazy, or already sharded.

#include "tessera/sharding/weight_files.h"

#include <torch/nn/module.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class Communicator;
class Pager;

/// A tensor of the module inside a tensor of the checkpoint: offset, sizes and
/// strides as in EntryView.
struct WeightPiece {
  std::string name; ///< the module's
  std::vector<int64_t> shape; ///< that the checkpoint's tensor must have
  int64_t offset = 0;
  std::vector<int64_t> sizes; ///< as many elements as the module's tensor has
  std::vector<int64_t> strides;
};

struct LoadWeightsOptions {
  /// The module's name of a checkpoint's tensor; "" leaves the tensor out.
  /// By default names are taken as they are.
  std::function<std::string(std::string_view)> rename;
  /// In place of `rename`, for a checkpoint that keeps tensors transposed or
  /// several as one, or a module that holds parts of them: what of the tensor
  /// of this name goes where. Empty leaves the tensor out; nothing says that it
  /// is unexpected.
  std::function<std::optional<std::vector<WeightPiece>>(std::string_view)>
      pieces;
  /// Parameters with one of these prefixes may be missing; they keep what they
  /// hold.
  std::vector<std::string> may_be_missing;
  /// Otherwise missing and unexpected names are reported, not refused.
  bool strict = true;
  /// Unexpected names are reported, even if strict.
  bool allows_unexpected = false;
};

struct LoadWeightsReport {
  /// Parameters that the checkpoint does not have, by their first names.
  std::vector<std::string> missing;
  /// Tensors of the checkpoint that the module does not have.
  std::vector<std::string> unexpected;
  /// Tensors of the checkpoint that `rename` left out.
  std::vector<std::string> left_out;
};

/// Loads a checkpoint into parameters and registered buffers; floating-point
/// numbers are converted to what the module has. Buffers may be missing. Of a
/// tied parameter any of its names will do.
///
/// Parameters that have memory are read now. Lazy ones (tessera::lazy) are read
/// when they get memory: tessera::wrap reads each rank's part of the file,
/// materialize() reads all. The files must stay as they are until then.
/// @param path see WeightFiles::open().
/// @throws tessera::Error, with the module unchanged, that names every tensor
///   that is missing, unexpected (with the nearest names), of another shape, or
///   of a dtype that does not convert.
LoadWeightsReport load_weights(
    torch::nn::Module& module,
    const std::filesystem::path& path,
    const LoadWeightsOptions& options = {});

/// The same for a module that is sharded: each rank reads its own part of each
/// parameter, into the master weights where there are some. Gradients become
/// none. No gather scope may be open. Collective; all ranks see the same files.
/// @param stages where other ranks have other pipeline stages: those with this
///   place in each. What one stage takes is neither unexpected nor left out,
///   and the report is that of all.
LoadWeightsReport load_sharded_weights(
    Pager& pager,
    torch::nn::Module& module,
    const std::filesystem::path& path,
    const LoadWeightsOptions& options = {},
    Communicator* stages = nullptr);

} // namespace tessera
