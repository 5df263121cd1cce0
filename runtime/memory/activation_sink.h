// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ActivationSink` receives the tensors that autograd saves for backward and
// decides where they rest.

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <functional>
#include <memory>

namespace tessera::runtime {

/// True for storages whose memory is managed elsewhere: parameters, buffers.
using StorageTest = std::function<bool(const c10::StorageImpl&)>;

/// A saved tensor, owned by the node of the autograd graph that saved it.
class SavedActivation {
 public:
  virtual ~SavedActivation() = default;

  /// Returns the tensor as it was saved: sizes, strides, dtype and values,
  /// detached from the graph. Ready for work issued to the current stream from
  /// then on; does not wait for a device. May be called any number of times,
  /// from any thread.
  virtual at::Tensor give() = 0;
};

/// Keeps the tensor unchanged, but without its graph: it may be the output of
/// the node that holds it.
class PassedActivation final : public SavedActivation {
 public:
  explicit PassedActivation(const at::Tensor& tensor)
      : tensor_(tensor.tensor_data()) {}

  at::Tensor give() override {
    return tensor_;
  }

 private:
  at::Tensor tensor_;
};

/// Takes over saved tensors. Thread-safe: operators run on any thread.
class ActivationSink {
 public:
  virtual ~ActivationSink() = default;

  /// Called by an operator while autograd records it, with gradients disabled.
  /// The result may outlive the sink's owner and keeps what it needs.
  /// @param tensor defined; may be a view or a parameter, on any device. Keep
  ///   only its storage, never the tensor, which can be part of the graph.
  /// @param to_host whether the caller asked for host memory, see
  ///   SaveToHostScope.
  virtual std::unique_ptr<SavedActivation> take(
      const at::Tensor& tensor,
      bool to_host) = 0;
};

} // namespace tessera::runtime
