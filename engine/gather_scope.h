// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GatherScope` makes sharded parameters readable and writable outside a
// training step.

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

  /// Ends the scope before its destructor does. Collective if it is writable,
  /// over the ranks that have made it.
  /// @throws tessera::Error on all of them if some have written other values,
  ///   naming a parameter.
  void commit();

 private:
  sharding::GatherScopes* scopes_; ///< null after the end and after a move
  std::weak_ptr<const void> engine_; ///< owns them
  std::vector<sharding::Page*> pages_;
  bool writable_;
  bool on_all_stages_; ///< see sharding::WrittenValues
};

} // namespace tessera
