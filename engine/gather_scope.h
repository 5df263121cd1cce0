// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GatherScope` makes sharded parameters readable and writable outside a
// training step.

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace tessera::sharding {

class Pager;

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
/// write the same values.
///
/// Made by Engine::gather(), on all ranks. Must end before the next
/// Engine::step(). It has no effect at its end if the engine has ended before.
class [[nodiscard]] GatherScope {
 public:
  GatherScope(
      sharding::Pager& pager,
      std::weak_ptr<const void> engine,
      std::vector<size_t> groups,
      bool writable);
  ~GatherScope();
  GatherScope(GatherScope&& other) noexcept;
  GatherScope(const GatherScope&) = delete;
  GatherScope& operator=(const GatherScope&) = delete;
  GatherScope& operator=(GatherScope&&) = delete;

 private:
  sharding::Pager* pager_; ///< null after a move
  std::weak_ptr<const void> engine_; ///< owns the pager
  std::vector<size_t> groups_;
  bool writable_;
};

} // namespace tessera
