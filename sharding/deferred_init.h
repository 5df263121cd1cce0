// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors that have a shape and no memory yet, only a way to fill it. When a
// module is wrapped, each rank makes and fills its own slice of them; a tensor
// never exists whole.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// How the elements of a storage come to be.
struct DeferredInit {
  /// Fills `slice` ([n], contiguous, of the storage's dtype and device) with
  /// elements [first_element, first_element + n) of the storage. May be called
  /// for any part, in any order, on any rank: what an element becomes depends
  /// on its index alone.
  std::function<void(const at::Tensor& slice, int64_t first_element)> fill;
  /// For errors: what it is, or the name of the parameter where that is known.
  std::string name = "a tensor";
  /// What random values come from, if any. wrap() gives every rank the seeds of
  /// rank 0, so that their slices are of the same tensor.
  std::vector<std::shared_ptr<uint64_t>> seeds = {};
};

/// Takes the storage's memory away and lets `init` stand in for it: its nbytes
/// stay, reading it is an error. `init` goes with the storage, or when the
/// storage gets memory.
void set_deferred_init(c10::StorageImpl& storage, DeferredInit init);

/// What set_deferred_init() was last given, or null when there is memory. O(1).
DeferredInit* deferred_init(const c10::StorageImpl& storage);

/// True when `tensor` waits for its memory.
bool is_deferred(const at::Tensor& tensor);

/// A contiguous tensor without memory.
at::Tensor make_deferred(
    at::IntArrayRef sizes,
    const at::TensorOptions& options,
    DeferredInit init);

/// Gives a deferred tensor memory and values of its own; nothing happens to
/// others.
void materialize(const at::Tensor& tensor);

/// Does so for all parameters and buffers of `module`: to use it without an
/// engine.
void materialize(const torch::nn::Module& module);

} // namespace tessera
