// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads parts of a checkpoint, whatever division it was written under.

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

namespace tessera {

/// One checkpoint, opened for reading. Every tensor is checked against its
/// checksum when it is first touched. All functions throw tessera::Error naming
/// the file and the tensor.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::filesystem::path& checkpoint);

  const CheckpointManifest& manifest() const {
    return manifest_;
  }
  int world_size() const {
    return static_cast<int>(manifest_.ranks.size());
  }

  /// @throws tessera::Error unless elements [offset, offset + numel) of a state
  ///   of a parameter are there, whole and undamaged.
  void check_elements(
      const std::string& parameter,
      const std::string& state,
      int64_t offset,
      int64_t numel);

  /// Copies them into `values` ([numel], any floating-point type and device).
  void read_elements(
      const std::string& parameter,
      const std::string& state,
      int64_t offset,
      const at::Tensor& values);

  /// Whether rank `r`'s file has a tensor.
  bool contains(int r, const std::string& name) const;

  /// A copy of a tensor of rank `r`'s file.
  at::Tensor tensor(int r, const std::string& name);

  /// All tensors of rank `r` whose names begin with `prefix`, without it.
  std::map<std::string, at::Tensor> tensors(int r, const std::string& prefix);

 private:
  struct Piece {
    int rank;
    const SavedTensor* tensor;
  };

  SafetensorsFile& file(int r);
  const SafetensorsEntry& checked_entry(int r, const SavedTensor& tensor);
  const SavedTensor* find(int r, const std::string& name) const;
  template <typename Body>
  void for_each_overlap(
      const std::string& parameter,
      const std::string& state,
      int64_t offset,
      int64_t numel,
      const Body& body);

  std::filesystem::path path_;
  CheckpointManifest manifest_;
  std::vector<std::optional<SafetensorsFile>> files_;
  std::set<const SavedTensor*> checked_;
  /// By parameter and state, ascending by offset.
  std::map<std::pair<std::string, std::string>, std::vector<Piece>> pieces_;
};

} // namespace tessera
