// SPDX-License-Identifier: Apache-2.0
#pragma once
// `lazy()` builds a module of any size: its constructors run unchanged, but
// large tensors get only a shape, and their initialization is recorded and
// deferred.

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace tessera {

struct LazyOptions {
  /// Seed of all random initializers; LibTorch's default generator is then as
  /// it was before. If unset, it is drawn from that generator, so that
  /// torch::manual_seed() determines it. wrap() gives ranks that have the same
  /// layers the seed of the first of them, unless
  /// ShardingOptions::broadcast_from_rank0 is false; only a constructor that
  /// reads random values back needs the same seed on all of them from the
  /// start. Tensor-parallel ranks need the same seed, else wrap() throws.
  /// Pipeline stages may have seeds of their own.
  std::optional<uint64_t> seed;
  /// Smaller tensors are allocated at once, as usual. Tensors that a
  /// constructor reads or writes by pointer or accessor must be smaller than
  /// this.
  int64_t min_numel = 4096;
  /// When the constructor asks for values (Tensor::item(), nonzero, ...), they
  /// are computed immediately from tensors of at most this many elements.
  /// Larger tensors that are neither parameters nor registered buffers stay
  /// without memory.
  int64_t max_read_numel = int64_t{1} << 22;
};

/// While a `LazyScope` is alive, floating-point tensors that this thread
/// creates are deferred. Use lazy() instead of this class.
class LazyScope {
 public:
  /// @throws tessera::Error inside another LazyScope, and when another library
  ///   uses the dispatch key TESTING_ONLY_GenericMode.
  explicit LazyScope(const LazyOptions& options);
  ~LazyScope();
  LazyScope(const LazyScope&) = delete;
  LazyScope& operator=(const LazyScope&) = delete;

  /// Gives deferred parameters their names for error messages, and materializes
  /// everything that is not a parameter: buffers and other tensors that the
  /// module holds.
  void finish(const torch::nn::Module& module);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

namespace detail {

template <typename Module>
Module& module_in(const std::shared_ptr<Module>& module) {
  return *module;
}

template <typename Contained>
Contained& module_in(const torch::nn::ModuleHolder<Contained>& holder) {
  return *holder.ptr();
}

} // namespace detail

/// Builds a module whose parameters have no memory.
///
/// ```
/// auto model = tessera::lazy([&] { return MyModel(config); });
/// auto engine = tessera::wrap(model, options);
/// ```
/// wrap() allocates and initializes only each rank's shard, group by group;
/// materialize() initializes the whole module. Either way, and for any number
/// of ranks, an element gets the same value: random values depend on the seed,
/// on the position of the random operator in the sequence of them, and on the
/// index of the element. (They differ from the values that LibTorch's generator
/// would give.) A tensor whose initialization is not elementwise, such as
/// torch::nn::init::orthogonal_, is temporarily whole on every rank. Buffers
/// are allocated and initialized when lazy() returns.
///
/// Cast inside `build` (model->to(torch::kBFloat16)). Not collective; all ranks
/// must build the same module.
/// @param build returns a module holder or a std::shared_ptr to a module.
/// @throws tessera::Error naming the operator when the constructor needs values
///   of tensors that are too large to be computed.
template <typename Build>
auto lazy(Build&& build, const LazyOptions& options = {}) {
  LazyScope scope(options);
  auto module = std::forward<Build>(build)();
  scope.finish(detail::module_in(module));
  return module;
}

/// Materializes all parameters and buffers of `module`, to use it without an
/// engine.
void materialize(const torch::nn::Module& module);

} // namespace tessera
