// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PendingSave` is a checkpoint that is being written in the background.

#include <chrono>
#include <filesystem>
#include <future>
#include <utility>

namespace tessera {

/// Made by Engine::save_in_background(). Copies are of the same checkpoint.
class PendingSave {
 public:
  explicit PendingSave(std::shared_future<std::filesystem::path> result)
      : result_(std::move(result)) {}

  /// Whether the checkpoint is complete, or has failed. Does not block.
  bool is_done() const {
    return result_.wait_for(std::chrono::seconds(0)) ==
           std::future_status::ready;
  }

  /// Blocks until it is done on all ranks. Not collective.
  /// @return the folder of the checkpoint.
  /// @throws tessera::Error, on every rank, as Engine::save().
  std::filesystem::path wait() const {
    return result_.get();
  }

 private:
  std::shared_future<std::filesystem::path> result_;
};

} // namespace tessera
