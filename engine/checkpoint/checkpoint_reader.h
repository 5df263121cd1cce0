// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CheckpointFiles` opens and verifies what is in a checkpoint's files;
// `CheckpointReader` reads parts of it under any layout, whatever layout wrote
// it.

#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/runtime/io/safetensors.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::engine {

/// The files of a checkpoint, which are opened when they are first asked for.
/// Functions that do not return a problem throw it, as tessera::Error naming
/// the file and the tensor.
class CheckpointFiles {
 public:
  explicit CheckpointFiles(const std::filesystem::path& checkpoint);

  const CheckpointManifest& manifest() const {
    return manifest_;
  }
  int world_size() const {
    return static_cast<int>(manifest_.ranks.size());
  }
  const std::filesystem::path& path() const {
    return path_;
  }

  /// Why the file of rank `r` is not what the manifest says, as "is missing";
  /// nullopt: it is.
  std::optional<std::string> problem_of(int r) const;
  /// The file of rank `r`. Lives as long as this object.
  const runtime::SafetensorsFile& file(int r);

  /// A tensor in the file of rank `r`, whose size is that in the manifest; not
  /// verified.
  const runtime::SafetensorsEntry& stored(int r, const SavedTensor& tensor);

  /// Whether a stored tensor has the checksum of the manifest.
  static bool is_undamaged(
      const runtime::SafetensorsEntry& stored,
      const SavedTensor& tensor);
  /// stored(), verified when it is first asked for.
  const runtime::SafetensorsEntry& verified(int r, const SavedTensor& tensor);

 private:
  std::filesystem::path path_;
  CheckpointManifest manifest_;
  std::vector<std::optional<runtime::SafetensorsFile>> files_;
  std::set<const SavedTensor*> verified_;
};

/// A checkpoint that is open for reading. Every tensor is verified against its
/// checksum when it is first read. All functions throw tessera::Error naming
/// the file and the tensor.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::filesystem::path& checkpoint);

  CheckpointFiles& files() {
    return files_;
  }
  const CheckpointManifest& manifest() const {
    return files_.manifest();
  }
  int world_size() const {
    return files_.world_size();
  }
  const std::filesystem::path& path() const {
    return files_.path();
  }

  /// The states that there are of a parameter, such as "master", "exp_avg".
  std::vector<std::string> states_of(const std::string& parameter) const;
  /// Whether there is a state of a parameter.
  bool has(const std::string& parameter, const std::string& state) const {
    return slices_.contains({parameter, state});
  }

  /// @throws tessera::Error unless the elements of a parameter's state are
  ///   present, complete and undamaged.
  void check_elements(
      const std::string& parameter,
      const std::string& state,
      const TensorSlice& part);

  /// Copies elements to `values` ([part.numel], contiguous, any
  /// floating-point dtype and device).
  void read_elements(
      const std::string& parameter,
      const std::string& state,
      const TensorSlice& part,
      const at::Tensor& values);

  /// The first rank from `r` on, wrapping around after the last one, whose file
  /// contains a tensor; nothing if none does.
  std::optional<int> rank_with(int r, const std::string& name) const;

  /// A copy of a tensor in the file of rank `r`.
  at::Tensor tensor(int r, const std::string& name);

  /// All tensors of rank `r` whose names begin with `prefix`, which is removed
  /// from the names.
  std::map<std::string, at::Tensor> tensors(int r, const std::string& prefix);

 private:
  struct SavedSlice {
    int rank;
    const SavedTensor* tensor;
  };

  void check_slices(
      const std::string& parameter,
      const std::vector<SavedSlice>& slices) const;
  const SavedTensor* find(int r, const std::string& name) const;
  template <typename Body>
  void for_each_overlap(
      const std::string& parameter,
      const std::string& state,
      const TensorSlice& part,
      const Body& body);

  CheckpointFiles files_;
  /// By parameter and state, ascending by part and offset.
  std::map<std::pair<std::string, std::string>, std::vector<SavedSlice>>
      slices_;
};

} // namespace tessera::engine
