// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WeightFiles` opens the weights of a model, in one file or several.

#include "tessera/sharding/weights/weight_entry.h"

#include <filesystem>
#include <map>
#include <memory>
#include <string>

namespace tessera::sharding {

/// A checkpoint's tensors by name. The files stay memory-mapped; only the bytes
/// that are requested are read. Copies share the files.
class WeightFiles {
 public:
  /// @param path a .safetensors file, a file of torch.save (.bin, .pt, .pth,
  ///   .ckpt; see torch_weights()), an index file (.json), or a folder that
  ///   contains, in this order, model.safetensors, pytorch_model.bin (each
  ///   alone or in several files with an index), pytorch_model.pt, a checkpoint
  ///   of torch.distributed.checkpoint or DeepSpeed (torch_checkpoint.h), or
  ///   mp_rank_00_model_states.pt (GLM). Names that torch.save wrote are those
  ///   of the module without wrappers such as DistributedDataParallel.
  /// @throws tessera::Error when there are no weights, when a file is
  ///   malformed, or when the index names a file or a tensor that does not
  ///   exist.
  static WeightFiles open(const std::filesystem::path& path);

  /// Tensors that were made of others, such as under other names.
  /// @param path names them in errors.
  static WeightFiles of(const std::filesystem::path& path, WeightSet weights);

  /// What keeps the files open.
  const WeightSet& weights() const;
  /// The entries live as long as this object or a copy of it.
  const std::map<std::string, WeightEntry>& entries() const;
  /// Null if there is no tensor of that name.
  const WeightEntry* find(const std::string& name) const;
  const std::filesystem::path& path() const;
  /// A checksum of names, dtypes and shapes, and of the checksums of tensors,
  /// or of some bytes of each: other files of weights have another one, but for
  /// a few of their elements. Reads little.
  const std::string& identity() const;

 private:
  struct Opened;
  explicit WeightFiles(std::shared_ptr<const Opened> opened);

  std::shared_ptr<const Opened> opened_;
};

} // namespace tessera::sharding
