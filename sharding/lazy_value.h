// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the constructor of a module did to a tensor that has no memory: enough
// to do it later, whole or for a slice.
//
// [Note: lazy values] A value is what a storage holds at one moment. It never
// changes: an operator that writes to a lazy storage makes a new value, which
// knows the one before. Whoever read the old value keeps it. So there are no
// cycles, and initialisers that are overwritten are forgotten.
//
// [Note: values by slice] Most initialisers are elementwise: fill a range, draw
// random numbers by counter, scale. Such a value can be made for any range of
// its storage alone. Others (a QR decomposition, a strided column) are made
// whole, by one thread, and the wanted part is copied out. Which of both it is
// depends on the recording only, so all ranks agree. Elementwise arithmetic is
// done in pieces that begin at fixed elements and are too short to be divided
// among threads: the bits are the same for every slice, number of ranks and of
// threads.

#include "tessera/runtime/kernels/counter_random.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

namespace tessera {

struct LazyValue;

using LazySeeds = std::vector<std::shared_ptr<uint64_t>>;

/// A stream of random numbers whose seed may still change.
struct LazyRandom {
  std::shared_ptr<uint64_t> seed; ///< null: nothing is drawn
  uint64_t stream = 0;

  RandomStream numbers() const {
    return {*seed, stream};
  }
};

/// The place of a tensor in its storage, in elements.
struct LazyView {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;

  static LazyView of(const at::Tensor& tensor);
  int64_t numel() const;
  /// Covers numel() elements in a row, each once, in whatever order.
  bool is_dense() const;
  /// Elements of equal index lie in equal order.
  bool same_order(const LazyView& other) const;
  /// This view of `memory`, which holds the whole storage.
  at::Tensor in(const at::Tensor& memory) const;
};

/// An argument that is lazy.
struct LazyArgument {
  std::shared_ptr<LazyValue> value;
  LazyView view;
};

/// An operator and what it was called with. Lazy tensors are stood in for by
/// meta tensors, others were copied.
struct LazyCall {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;
  /// By stand-in. The tensor that is written to is not among them.
  std::unordered_map<const c10::TensorImpl*, LazyArgument> lazy;
  /// Stands in for the tensor that is written to; may be null.
  const c10::TensorImpl* target = nullptr;
  /// For operators that draw numbers of their own.
  LazyRandom random;
};

struct LazyValue {
  enum class Kind {
    kEmpty, ///< zeros; what at::empty makes of it may differ
    kFill, ///< `first` in `view`
    kUniform, ///< in [first, second)
    kNormal, ///< mean `first`, standard deviation `second`
    kWrite, ///< `call` wrote to `view`
    kResult, ///< output number `output` of `call`, which is all of the storage
  };

  LazyValue(int64_t numel, at::ScalarType dtype)
      : numel(numel), dtype(dtype), largest_numel(numel) {}
  ~LazyValue();
  LazyValue(const LazyValue&) = delete;
  LazyValue& operator=(const LazyValue&) = delete;

  int64_t numel;
  at::ScalarType dtype;
  /// What was there before; null where nothing of it is left.
  std::shared_ptr<LazyValue> previous;

  Kind kind = Kind::kEmpty;
  LazyView view;
  at::Scalar first;
  double second = 0;
  LazyRandom random;
  std::shared_ptr<const LazyCall> call;
  size_t output = 0;

  /// That its numbers come from, in the order of their first use.
  LazySeeds seeds;
  /// Of the largest storage that must be made to have this one.
  int64_t largest_numel;
  /// Ranges can be made alone.
  bool by_slice = true;
  /// Ranges can be made in place, without arithmetic on other tensors.
  bool fills_only = true;
};

/// Sets seeds, largest_numel, by_slice and fills_only, and drops a previous
/// value that is overwritten. Call when all else is set.
void finish(LazyValue& value);

/// A DeferredInit's fill function that makes a lazy value.
struct LazyFill {
  std::shared_ptr<LazyValue> value;

  /// @throws tessera::Error naming the operator that failed.
  void operator()(const at::Tensor& slice, int64_t first_element) const;
};

/// The whole value, on the CPU: [numel].
at::Tensor make_whole(const std::shared_ptr<LazyValue>& value);

/// `value` with `change` applied to each tensor in it, lists included.
c10::IValue map_tensors(
    const c10::IValue& value,
    const std::function<at::Tensor(const at::Tensor&)>& change);

} // namespace tessera
