// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RankFile` is what one rank writes of a checkpoint.

#include "tessera/engine/checkpoint/checkpoint.h"
#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/checkpoint/model_tensors.h"
#include "tessera/engine/checkpoint/state_agreement.h"
#include "tessera/engine/checkpoint/subject_tensors.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::engine {

/// A safetensors file: first its table of contents, then its bytes, which are
/// read from the engine when they are written, or from a snapshot.
class RankFile {
 public:
  /// Lists the tensors. @param subject must outlive this object, unless a
  ///   snapshot is taken.
  /// @param states of all of subject.states, which rank 0 writes, or each rank.
  RankFile(
      const CheckpointSubject& subject,
      const ModelTensors& model,
      std::vector<NamedState> states,
      int rank);

  /// Bytes of a snapshot of all tensors.
  int64_t snapshot_bytes() const;

  /// Copies all values to `memory`, from which write() then takes them: the
  /// engine may go on. Blocks, also on disks where state rests.
  /// @param memory at least snapshot_bytes() of kByte on the CPU; must keep its
  ///   values until write() has returned.
  void take_snapshot(const at::Tensor& memory);

  /// Blocks on the disk. @return its entry in the manifest.
  SavedRank write(const std::filesystem::path& folder);

 private:
  void add(SavedTensor tensor, const at::Tensor& values);
  /// @param load returns the values when they are needed; called in the order
  ///   of the additions.
  void add(
      SavedTensor tensor,
      at::ScalarType dtype,
      std::vector<int64_t> sizes,
      std::function<at::Tensor()> load);
  void add_state(const std::string& name, CheckpointState state);

  SavedRank rank_;
  std::vector<TensorSpec> specs_;
  std::vector<std::function<at::Tensor()>> loads_;
};

/// "rank-3.safetensors". @param ending with its point.
std::string rank_file_name(int rank, const char* ending);

} // namespace tessera::engine
