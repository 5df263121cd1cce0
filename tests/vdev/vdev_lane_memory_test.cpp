// SPDX-License-Identifier: Apache-2.0
// Memory that lanes use, taken from a stream of the user's and given back to
// it: nobody else may use it in between.
#include "support/vdev/vdev.h"
#include "tessera/offload/updates/update_queue.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/slot_arena.h"

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <utility>

namespace tessera::tests::vdev::vdev_lane_memory_test {

namespace {

constexpr int64_t kNumel = 4096;
constexpr int64_t kBytes = kNumel * 4;

/// Uses a slot of `arena` on a lane, where it is filled.
void use_slot(runtime::SlotArena& arena, runtime::Slot slot, World& world) {
  const runtime::StreamLane lane(world.device());
  lane.wait_for(slot.after);
  {
    const runtime::StreamLane::Scope on_lane(lane);
    slot.tensor.fill_(1);
  }
  slot.after = lane.mark();
  arena.release(slot);
}

class LaneMemory : public ::testing::TestWithParam<Policy> {
 protected:
  void run(const std::function<void(World&)>& body) {
    run_ranks_on_vdev(1, GetParam(), body);
  }
};

} // namespace

TEST_P(LaneMemory, OfAnArenaIsFreeWhenItIsTaken) {
  run([](World& world) {
    MemoryLedger ledger;
    runtime::SlotArena arena(
        ledger, MemoryPurpose::kGatherSlots, world.device());
    use_free_memory(world.device(), {kNumel});
    arena.resize(kBytes);
    use_slot(arena, arena.try_allocate(kNumel, at::kFloat), world);
    use_free_memory(world.device(), {kNumel});
    use_slot(arena, arena.allocate_outside(kNumel, at::kFloat), world);
    arena.resize(0);
  });
}

TEST_P(LaneMemory, OfAnArenaGoesBackToTheStreamItCameFrom) {
  run([](World& world) {
    MemoryLedger ledger;
    runtime::SlotArena arena(
        ledger, MemoryPurpose::kGatherSlots, world.device());
    for (int round = 0; round < 2; ++round) {
      arena.resize(kBytes);
      use_slot(arena, arena.try_allocate(kNumel, at::kFloat), world);
      runtime::Slot outside = arena.allocate_outside(kNumel, at::kFloat);
      {
        const c10::StreamGuard on_other(new_stream(world.device()));
        use_slot(arena, std::move(outside), world);
        arena.resize(0);
      }
      use_free_memory(world.device(), {kNumel});
    }
  });
}

TEST_P(LaneMemory, OfAnArenaThatIsInUseGoesBackWhereItGrew) {
  run([](World& world) {
    MemoryLedger ledger;
    const runtime::StreamLane lane(world.device());
    const c10::StreamGuard on_other(new_stream(world.device()));
    {
      runtime::SlotArena arena(
          ledger, MemoryPurpose::kGatherSlots, world.device());
      arena.resize(kBytes);
      const runtime::Slot slot = arena.try_allocate(kNumel, at::kFloat);
      const runtime::Slot outside = arena.allocate_outside(kNumel, at::kFloat);
      for (const runtime::Slot& used : {slot, outside}) {
        lane.wait_for(used.after);
        const runtime::StreamLane::Scope on_lane(lane);
        used.tensor.fill_(1);
      }
      lane.wait_before_memory_is_freed(arena.homes());
    }
    use_free_memory(world.device(), {kNumel});
  });
}

TEST_P(LaneMemory, OfUpdatesGoesBackToTheStreamItCameFrom) {
  run([](World& world) {
    auto queue = std::make_unique<offload::UpdateQueue>(world.device());
    at::Tensor weights = torch::zeros({kNumel}, world.device());
    queue->follow_current();
    queue->wait(queue->submit([&] { weights.add_(1); })); // it is issued
    {
      const c10::StreamGuard on_other(new_stream(world.device()));
      queue.reset();
      weights = at::Tensor();
    }
    use_free_memory(world.device(), {kNumel});
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    LaneMemory,
    ::testing::ValuesIn(policies(
        {{Policy::Order::kEager},
         {Policy::Order::kLazy},
         {Policy::Order::kRandom, 1}})),
    [](const auto& which) { return which.param.name(); });

} // namespace tessera::tests::vdev::vdev_lane_memory_test
