// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LazyValue` records what a module's constructor did to a tensor that has no
// memory, so that it can be done later, for the whole tensor or a slice.
//
// [Note: lazy values] A value is the content of a storage at one moment. It is
// immutable: an operator that writes to a lazy storage makes a new value, which
// refers to the previous one. Operators that have read the old value keep it.
// So there are no cycles, and initializers whose results are overwritten are
// dropped.
//
// [Note: values by slice] Most initializers are elementwise: they fill a range,
// draw random numbers by counter, or scale. Such a value can be computed for
// any range of its storage. Others (a QR decomposition, a strided column) are
// computed whole, by one thread, and the requested range is copied out. Which
// applies depends only on the recording, so all ranks agree. Elementwise
// arithmetic is done in pieces that begin at fixed elements and are too short
// to be divided among threads, so the bits are the same for every slice, number
// of ranks and number of threads.

#include "tessera/runtime/random/counter_random.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

namespace tessera::sharding {

struct LazyValue;

using LazySeeds = std::vector<std::shared_ptr<uint64_t>>;

/// A stream of random numbers whose seed may still change.
struct LazyRandom {
  std::shared_ptr<uint64_t> seed; ///< null: no random numbers are used
  uint64_t stream = 0;

  RandomStream numbers() const {
    return {*seed, stream};
  }
};

/// Sizes, strides and offset of a tensor in its storage, in elements.
struct LazyView {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;

  static LazyView of(const at::Tensor& tensor);
  int64_t numel() const;
  /// Returns whether it covers numel() consecutive elements, each once, in any
  /// order.
  bool is_dense() const;
  /// Returns whether elements of equal index have the same order in memory.
  bool same_order(const LazyView& other) const;
  /// Returns this view of `memory`, which holds the whole storage.
  at::Tensor in(const at::Tensor& memory) const;
};

/// A lazy argument of an operator.
struct LazyArgument {
  std::shared_ptr<LazyValue> value;
  LazyView view;
};

/// An operator and its arguments. Lazy tensors are represented by meta tensors,
/// others were copied.
struct LazyCall {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;
  /// By meta tensor. The tensor that is written to is not among them.
  std::unordered_map<const c10::TensorImpl*, LazyArgument> lazy;
  /// The meta tensor of the tensor that is written to; may be null.
  const c10::TensorImpl* target = nullptr;
  /// For operators that draw random numbers.
  LazyRandom random;
};

struct LazyValue {
  enum class Kind {
    kEmpty, ///< zeros; at::empty may return other values
    kFill, ///< `first`, in `view`
    kUniform, ///< uniform in [first, second)
    kNormal, ///< mean `first`, standard deviation `second`
    kWrite, ///< `call` wrote to `view`
    kResult, ///< output number `output` of `call`, which covers the storage
  };

  LazyValue(int64_t numel, at::ScalarType dtype)
      : numel(numel), dtype(dtype), largest_numel(numel) {}
  ~LazyValue();
  LazyValue(const LazyValue&) = delete;
  LazyValue& operator=(const LazyValue&) = delete;

  int64_t numel;
  at::ScalarType dtype;
  /// The value before this one; null if nothing of it remains.
  std::shared_ptr<LazyValue> previous;

  Kind kind = Kind::kEmpty;
  LazyView view;
  at::Scalar first;
  double second = 0;
  LazyRandom random;
  std::shared_ptr<const LazyCall> call;
  size_t output = 0;

  /// Seeds on which the value depends, in the order of first use.
  LazySeeds seeds;
  /// Number of elements of the largest storage that must be computed for this
  /// value.
  int64_t largest_numel;
  /// Whether ranges can be computed separately.
  bool by_slice = true;
  /// Whether ranges can be filled in place, without arithmetic on other
  /// tensors.
  bool fills_only = true;
};

/// Sets seeds, largest_numel, by_slice and fills_only, and drops a previous
/// value that is overwritten. Call it after setting all other members.
void finish(LazyValue& value);

/// A DeferredInit::fill function that computes a lazy value.
struct LazyFill {
  std::shared_ptr<LazyValue> value;

  /// @throws tessera::Error naming the operator that failed.
  void operator()(const at::Tensor& slice, int64_t first_element) const;
};

/// Computes the whole value, on the CPU: [numel].
at::Tensor make_full(const std::shared_ptr<LazyValue>& value);

/// Returns `value` with `change` applied to each tensor in it, also inside
/// lists.
c10::IValue map_tensors(
    const c10::IValue& value,
    const std::function<at::Tensor(const at::Tensor&)>& change);

} // namespace tessera::sharding
