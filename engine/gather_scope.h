// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GatherScope` makes sharded parameters readable and writable outside a
// training step.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace tessera::sharding {

class GatherScopes;
struct Page;

} // namespace tessera::sharding

namespace tessera {

/// Of Engine::gather().
struct GatherOptions {
  /// What is written to the parameters stays.
  bool writable = false;
};

/// Unshards parameters on every rank for as long as it lives; they can be read
/// like any tensor. With a writable scope they can also be written in place;
/// when it ends, each rank keeps its shard of what it wrote, so every rank must
/// write the same values. commit() ends the scope and compares them; after its
/// destructor, which does not throw, the next agreement of the ranks does, at
/// the latest that of step() or save(). Compared are ranks with the same part
/// of the model, without divided experts; their error is one of all ranks.
///
/// Of what tensor-parallel ranks divide, a parameter is this rank's part, with
/// which operators multiply; full() is the whole of it.
///
/// Made by Engine::gather(), on all ranks; of some parameters, on those of the
/// pipeline stages that have them. Must end before the next Engine::step(). It
/// has no effect at its end if the engine has ended before.
class [[nodiscard]] GatherScope {
 public:
  GatherScope(
      sharding::GatherScopes& scopes,
      std::weak_ptr<const void> engine,
      std::vector<sharding::Page*> pages,
      bool writable,
      bool on_all_stages);
  ~GatherScope();
  GatherScope(GatherScope&& other) noexcept;
  GatherScope(const GatherScope&) = delete;
  GatherScope& operator=(const GatherScope&) = delete;
  GatherScope& operator=(GatherScope&&) = delete;

  /// Returns the whole value of a parameter of the scope: of one that
  /// tensor-parallel ranks divide, a copy, the same tensor each time; of
  /// another, the parameter itself. If the scope is writable, what is written
  /// to it in place, the same on every rank, is the value when the scope ends,
  /// in the place of what this rank has written to its part. Collective over
  /// the ranks that divide it.
  /// @throws tessera::Error if the parameter is not one of the scope's.
  at::Tensor full(const at::Tensor& parameter);

  /// Ends the scope before its destructor does. Collective if it is writable,
  /// over the ranks that have made it.
  /// @throws tessera::Error on all of them if some have written other values,
  ///   naming a parameter; if a value of full() was written to, and the scope
  ///   is not writable.
  void commit();

 private:
  /// The whole of a parameter that tensor-parallel ranks divide.
  struct Full {
    at::Tensor parameter;
    at::Tensor local; ///< this rank's part, in the page
    at::Tensor value;
    int64_t version = 0; ///< of `value`, as given out
  };

  /// Puts what was written to whole values into the parts.
  void take_full_values();

  sharding::GatherScopes* scopes_; ///< null after the end and after a move
  std::weak_ptr<const void> engine_; ///< owns them
  std::vector<sharding::Page*> pages_;
  bool writable_;
  bool on_all_stages_; ///< see sharding::WrittenValues
  std::vector<Full> full_; ///< given out
};

} // namespace tessera
