// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PipelineTransfers` sends activations and gradients between pipeline stages.

#include "tessera/runtime/comm/ring_channels.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::pipeline {

/// The properties of a tensor that its receiver must know.
struct TensorForm {
  at::ScalarType dtype = at::kFloat; ///< Undefined for an undefined tensor
  std::vector<int64_t> sizes;
  bool requires_grad = false; ///< its gradient is sent back
  bool on_cpu = false; ///< not on the channels' device, if that is another

  /// An undefined tensor keeps its position, but nothing is sent for it.
  bool is_defined() const {
    return dtype != at::ScalarType::Undefined;
  }

  bool operator==(const TensorForm&) const = default;
};

using TensorForms = std::vector<TensorForm>;

TensorForms forms_of(const std::vector<at::Tensor>& tensors);

/// "[2, 3] Float, [2] Long"
std::string describe(const TensorForms& forms);

/// Tensors that are valid after wait().
struct IncomingTensors {
  std::vector<at::Tensor> tensors;
  std::vector<runtime::LaneCollective> pending;

  /// Blocks.
  /// @throws tessera::Error if the sender is gone or too late, or of `check`.
  void wait(const WaitCheck& check);
};

/// Sends and receives of one pipeline stage, several tensors at a time. The
/// forms of activations (dtype, sizes, ...) are sent ahead of them: with the
/// first ones that cross a border of the model only, or each time. Gradients
/// have the forms of the tensors that they belong to.
///
/// Instructions come in batches ([Note: transfers between stages]); in each,
/// sends are issued before receives. begin_batch() waits for what was sent two
/// batches ago, which a valid schedule has received by then, so at most two
/// batches of sent tensors are kept. What waits takes the check of the wait.
class PipelineTransfers {
 public:
  /// @param channels must outlive this object.
  PipelineTransfers(runtime::RingChannels& channels, bool forms_each_time);

  void begin_batch(const WaitCheck& check);

  /// @param border number of the piece that receives.
  /// @throws tessera::Error if the forms changed without forms_each_time, or
  ///   there are more tensors or dimensions than a header holds.
  void send_activations(
      const std::vector<at::Tensor>& tensors,
      int border,
      int to,
      const std::string& label);
  /// Blocks for the forms, if they are sent.
  /// @param forms set to those of the received tensors.
  IncomingTensors receive_activations(
      int border,
      int from,
      const std::string& label,
      TensorForms& forms,
      const WaitCheck& check);

  void send_gradients(
      const std::vector<at::Tensor>& tensors,
      int to,
      const std::string& label);
  /// @param forms of the tensors that the gradients belong to.
  IncomingTensors receive_gradients(
      const TensorForms& forms,
      int from,
      const std::string& label);

  /// Waits for everything that was sent.
  void finish(const WaitCheck& check);

 private:
  void send(const at::Tensor& tensor, int to, const std::string& label);
  IncomingTensors receive(
      const TensorForms& forms,
      int from,
      const std::string& label);

  runtime::RingChannels& channels_;
  bool forms_each_time_;
  std::map<int, TensorForms> sent_forms_; ///< by border
  std::map<int, TensorForms> received_forms_;
  std::vector<runtime::LaneCollective> this_batch_;
  std::vector<runtime::LaneCollective> last_batch_;
};

} // namespace tessera::pipeline
