// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where tensors rest that autograd saves for backward.

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <functional>
#include <memory>

namespace tessera {

/// True for storages whose memory somebody else governs: parameters, buffers.
using StorageTest = std::function<bool(const c10::StorageImpl&)>;

/// A saved tensor, held by the node of the autograd graph that saved it.
class SavedActivation {
 public:
  virtual ~SavedActivation() = default;

  /// The tensor as it was saved: sizes, strides, type and values; of no graph.
  /// Called any number of times, from any thread, and ready for what is issued
  /// to the current stream from then on. Does not wait for a device.
  virtual at::Tensor give() = 0;
};

/// Takes saved tensors over. Thread-safe: operators run in any thread.
class ActivationSink {
 public:
  virtual ~ActivationSink() = default;

  /// Called by an operator while its graph is recorded, without gradients. The
  /// result may outlive whoever made the sink; it keeps what it needs.
  /// @param tensor defined; may be a view, a parameter, on any device. Only its
  ///   storage may be kept, never the tensor: it can be part of the graph.
  /// @param to_host whether the caller asked for the host, see
  ///   SaveToHostScope.
  virtual std::unique_ptr<SavedActivation> take(
      const at::Tensor& tensor,
      bool to_host) = 0;
};

} // namespace tessera
