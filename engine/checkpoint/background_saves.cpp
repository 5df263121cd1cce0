// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/background_saves.h"

#include "tessera/engine/checkpoint/checkpoint_save.h"
#include "tessera/runtime/comm/on_all_ranks.h"
#include "tessera/runtime/core/error.h"

#include <cstdint>
#include <exception>
#include <optional>
#include <utility>

namespace tessera::engine {

BackgroundSaves::BackgroundSaves(
    World& world,
    c10::Device device,
    MemoryLedger& ledger,
    WaitCheck watch)
    : memory_({std::nullopt, device}, ledger),
      watch_(std::move(watch)),
      ranks_(world.new_communicator("checkpoints in the background")) {}

BackgroundSaves::~BackgroundSaves() {
  gives_up_ = std::uncaught_exceptions() > 0;
  finish();
}

void BackgroundSaves::finish() const {
  if (last_.valid()) {
    last_.wait(); // its error is that of its PendingSave
  }
}

PendingSave BackgroundSaves::begin(
    const CheckpointSubject& subject,
    const std::filesystem::path& folder,
    int keep_last) {
  finish();
  auto save = std::make_unique<CheckpointSave>(subject, folder, keep_last);
  runtime::on_all_ranks(
      subject.files,
      "save: copying the state to host memory",
      [&] {
        const int64_t bytes = save->snapshot_bytes();
        if (!snapshot_.defined() || snapshot_.numel() < bytes) {
          snapshot_ = at::Tensor(); // there is memory for one
          snapshot_ =
              memory_.allocate("the snapshot", MemoryPurpose::kSnapshot, bytes);
        }
        save->take_snapshot(snapshot_);
      },
      watch_);
  last_ =
      std::async(std::launch::async, [this, save = std::move(save)]() mutable {
        // Its lock of the folder ends with the save, not with the future.
        const auto ending = std::move(save);
        return ending->write(*ranks_, [this] {
          TESSERA_CHECK(
              !gives_up_, "save: given up, because training has failed");
          if (watch_) {
            watch_();
          }
        });
      }).share();
  return PendingSave(last_);
}

} // namespace tessera::engine
