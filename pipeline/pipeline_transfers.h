// SPDX-License-Identifier: Apache-2.0
#pragma once
// Activations and gradients on their way between stages.

#include "tessera/runtime/comm/ring_channels.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera {

/// What a receiver has to know of a tensor.
struct TensorForm {
  at::ScalarType dtype = at::kFloat; ///< Undefined for an undefined tensor
  std::vector<int64_t> sizes;
  bool requires_grad = false; ///< its gradient comes back
  bool on_cpu = false; ///< not on the channels' device, if that is another

  /// An undefined tensor keeps its place, and nothing is sent for it.
  bool is_defined() const {
    return dtype != at::ScalarType::Undefined;
  }

  bool operator==(const TensorForm&) const = default;
};

using TensorForms = std::vector<TensorForm>;

TensorForms forms_of(const std::vector<at::Tensor>& tensors);

/// "[2, 3] Float, [2] Long"
std::string describe(const TensorForms& forms);

/// Tensors that are there after wait().
struct IncomingTensors {
  std::vector<at::Tensor> tensors;
  std::vector<LaneCollective> pending;

  /// Blocks. @throws tessera::Error when the sender is gone or too late.
  void wait();
};

/// Sends and receives of one stage, several tensors at a time. The forms of
/// activations travel ahead of them: with the first ones that cross a border of
/// the model and never again, or each time. Gradients have the forms of what
/// they are gradients of.
///
/// Instructions come in batches ([Note: transfers between stages]); in each,
/// sends are issued before receives. begin_batch() waits for what was sent two
/// batches ago, which a valid schedule has had received by then, so that no
/// more than two batches of sent tensors are kept.
class PipelineTransfers {
 public:
  /// @param channels outlives this.
  PipelineTransfers(RingChannels& channels, bool forms_each_time);

  void begin_batch();

  /// @param border the piece that receives.
  /// @throws tessera::Error when the forms are others than before, without
  ///     forms_each_time, or there are more tensors or dimensions than a header
  ///     holds.
  void send_activations(
      const std::vector<at::Tensor>& tensors,
      int border,
      int to,
      const std::string& what);
  /// Blocks for the forms, where they are sent.
  /// @param forms of what was received: set.
  IncomingTensors receive_activations(
      int border,
      int from,
      const std::string& what,
      TensorForms& forms);

  void send_gradients(
      const std::vector<at::Tensor>& tensors,
      int to,
      const std::string& what);
  /// @param forms of what the gradients are of.
  IncomingTensors receive_gradients(
      const TensorForms& forms,
      int from,
      const std::string& what);

  /// Waits for everything that was sent.
  void finish();

 private:
  void send(const at::Tensor& tensor, int to, const std::string& what);
  IncomingTensors receive(
      const TensorForms& forms,
      int from,
      const std::string& what);

  RingChannels& channels_;
  bool forms_each_time_;
  std::map<int, TensorForms> sent_forms_; ///< by border
  std::map<int, TensorForms> received_forms_;
  std::vector<LaneCollective> this_batch_;
  std::vector<LaneCollective> last_batch_;
};

} // namespace tessera
