// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading and writing sharded parameters outside a training step.

#include <cstddef>
#include <utility>
#include <vector>

namespace tessera {

class Pager;

/// While it lives, the parameters it was made for are whole on every rank and
/// can be read like any tensor. A writable scope also lets them be written in
/// place; when it ends, each rank keeps its slice of what it wrote, so every
/// rank must write the same values.
///
/// Made by Engine::gather(), on all ranks. Ends before the next
/// Engine::step().
class [[nodiscard]] GatherScope {
 public:
  GatherScope(Pager& pager, std::vector<size_t> groups, bool writable);
  ~GatherScope();
  GatherScope(GatherScope&& other) noexcept;
  GatherScope(const GatherScope&) = delete;
  GatherScope& operator=(const GatherScope&) = delete;
  GatherScope& operator=(GatherScope&&) = delete;

 private:
  Pager* pager_; ///< null after a move
  std::vector<size_t> groups_;
  bool writable_;
};

} // namespace tessera
