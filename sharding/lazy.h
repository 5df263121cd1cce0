// SPDX-License-Identifier: Apache-2.0
#pragma once
// Building a module of any size: its constructor runs as it is, but large
// tensors get a shape only, and what would initialise them is noted.

#include "tessera/sharding/deferred_init.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace tessera {

struct LazyOptions {
  /// Of all random initialisers. Nothing: drawn from LibTorch's default
  /// generator, so that torch::manual_seed() decides. wrap() gives all ranks
  /// the seed of rank 0; only a constructor that reads random values back needs
  /// the same one from the start.
  std::optional<uint64_t> seed;
  /// Smaller tensors are made at once, as usual. A constructor that reads or
  /// writes elements by pointer or accessor needs tensors that are.
  int64_t min_numel = 4096;
  /// When the constructor asks for values (Tensor::item(), nonzero, ...) they
  /// are made on the spot from at most this many elements. Larger tensors that
  /// are neither parameters nor registered buffers stay without memory.
  int64_t max_read_numel = int64_t{1} << 22;
};

/// While it lives, floating-point tensors that this thread makes are deferred.
/// Use lazy().
class LazyScope {
 public:
  /// @throws tessera::Error inside another one, and when another library holds
  ///   the dispatch key TESTING_ONLY_GenericMode.
  explicit LazyScope(const LazyOptions& options);
  ~LazyScope();
  LazyScope(const LazyScope&) = delete;
  LazyScope& operator=(const LazyScope&) = delete;

  /// Gives parameters their names for errors, and values to all that is no
  /// parameter: buffers and tensors that the module keeps otherwise.
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
/// wrap() makes and initialises each rank's own part only, group by group;
/// materialize() makes the module whole. Either way, and for any number of
/// ranks, an element gets the same number: random ones depend on the seed, on
/// which of the random operators it was, and on the element's place. (They are
/// others than LibTorch's generator would give.) A tensor whose initialisation
/// is not elementwise, such as torch::nn::init::orthogonal_, is for a moment
/// whole on every rank. Buffers are real and right when lazy() returns.
///
/// Casts belong inside of `build` (model->to(torch::kBFloat16)). Not
/// collective; all ranks must build the same.
/// @param build returns a module holder or a std::shared_ptr of a module.
/// @throws tessera::Error naming the operator when the constructor needs values
///   that are too large to be made whole.
template <typename Build>
auto lazy(Build&& build, const LazyOptions& options = {}) {
  LazyScope scope(options);
  auto module = std::forward<Build>(build)();
  scope.finish(detail::module_in(module));
  return module;
}

} // namespace tessera
