// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TorchFile` reads files of torch.save (.pt, .pth, pytorch_model.bin): a
// pickle that refers to storages, which are entries of a ZIP archive, or, in
// files from before PyTorch 1.6, lie behind the pickle.
//
// [Note: why not LibTorch's reader] torch::pickle_load() and
// PyTorchStreamReader read every storage into memory, know ZIP archives only,
// and resolve classes of TorchScript; a rank needs a slice of some tensors.
// Stored entries have known offsets: here the file is mapped, and a tensor is a
// view of the map. See also [Note: inert pickles].

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/runtime/io/mapped_file.h"
#include "tessera/runtime/io/pickle.h"
#include "tessera/runtime/io/safetensors.h"
#include "tessera/runtime/io/zip_directory.h"

namespace tessera::runtime {

/// A tensor of a file: a view of a storage, as as_strided() makes it. All its
/// elements lie in the storage.
struct TorchTensor {
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides; ///< in elements; zero if expanded
  int64_t offset = 0; ///< of its first element in the storage, in elements
  /// In the mapping of the file: valid as long as the TorchFile. Not aligned.
  std::span<const std::byte> storage;
};

/// Whether a global ("torch._utils._rebuild_tensor_v2") may be in a pickle that
/// describes tensors: those that make tensors and containers, and records of
/// trainers (deepspeed, megatron, argparse, ...), which stay what they are.
bool is_tensor_global(std::string_view global);

/// The dtype of a global such as "torch.float32"; nothing for those that
/// safetensors does not have.
std::optional<SafetensorsDtype> dtype_of_global(std::string_view global);

/// Reads and checks all but the tensors when it is opened; they are read from
/// disk on access. Move-only; thread-safe for reading.
class TorchFile {
 public:
  /// @throws Error naming the file, what is wrong and the remedy: if it cannot
  ///   be read, is truncated, is no file of torch.save, is a TorchScript
  ///   program, or asks for a global that is not listed.
  static TorchFile open(const std::filesystem::path& path);

  /// The same for a file within another one, which must outlive it.
  static TorchFile in(
      std::span<const std::byte> bytes,
      const std::string& source);

  /// What was saved.
  const PickleNode& root() const {
    return pickle_->root();
  }

  static bool is_tensor(const PickleNode& node);
  /// @param name for errors.
  /// @throws Error if the tensor is malformed, or of a dtype that safetensors
  ///   does not have.
  TorchTensor tensor(const PickleNode& node, const std::string& name) const;

  /// The tensors in nested dictionaries and lists, in their order, with their
  /// keys joined by dots. Anything else is left out.
  std::vector<std::pair<std::string, TorchTensor>> tensors_in(
      const PickleNode& node) const;

  /// The entries of the archive whose bytes are not those of their checksums.
  /// Reads the whole file. Files from before PyTorch 1.6 have no checksums.
  std::vector<std::string> damaged_entries() const;
  bool has_checksums() const {
    return zip_.has_value();
  }

 private:
  TorchFile() = default;
  void read(std::span<const std::byte> bytes);
  void read_zip(std::span<const std::byte> bytes);
  void read_legacy(std::span<const std::byte> bytes);
  std::span<const std::byte> storage(
      const std::string& key,
      const std::string& name) const;

  MappedFile file_;
  std::string source_;
  std::optional<ZipDirectory> zip_;
  std::string folder_; ///< in the archive, with a slash
  std::unique_ptr<const Pickle> pickle_;
  /// Of the legacy format, by key.
  std::map<std::string, std::span<const std::byte>> storages_;
};

} // namespace tessera::runtime
