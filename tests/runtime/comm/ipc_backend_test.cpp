// SPDX-License-Identifier: Apache-2.0
// Collectives in the order of streams, on host memory: ranks are processes,
// streams are threads with random pauses.
#include "support/ipc/ipc_backend.h"
#include "support/expect_error.h"
#include "support/host_streams.h"
#include "support/ranks.h"
#include "tessera/runtime/comm/shm_backend.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

namespace tessera::runtime::ipc::ipc_backend_test {

namespace {

using namespace std::chrono_literals;
using tests::HostStreams;

// Small, so that tensors of a few kB take many turns; 3 ranks do not divide it.
constexpr int64_t kSlotBytes = 16 << 10;

/// A rank's communicator and its device.
struct Device {
  std::unique_ptr<Communicator> comm;
  HostStreams* streams = nullptr; ///< the backend's
};

Device make_device(World& world, std::chrono::milliseconds timeout) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      world.unique_name("ipc"), world.store());
  auto streams =
      std::make_unique<HostStreams>(static_cast<unsigned>(world.rank() + 1));
  Device device;
  device.streams = streams.get();
  device.comm = std::make_unique<Communicator>(
      "test",
      c10::make_intrusive<IpcBackend>(
          store,
          world.rank(),
          world.size(),
          IpcOptions{timeout, kSlotBytes},
          std::move(streams)),
      timeout);
  return device;
}

Device make_device(World& world) {
  return make_device(world, world.options().timeout);
}

/// Different on every rank, with sums that depend on their order.
at::Tensor random_of(int rank, int64_t numel, at::ScalarType dtype) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rank + 1));
  return at::randn({numel}, generator, at::kFloat).mul_(100).to(dtype);
}

// Empty, odd, what just fits a slot, and what takes many turns.
constexpr int64_t kNumels[] = {0, 1, 1023, 4096, 4097, 60007};
constexpr at::ScalarType kTypes[] =
    {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kInt};

class IpcBackendTest : public ::testing::TestWithParam<int> {
 protected:
  static void run(
      const std::function<void(World&, const Device&)>& body,
      const tests::RankOptions& options = {}) {
    tests::run_ranks(
        GetParam(),
        [&](World& world) {
          const Device device = make_device(world);
          body(world, device);
        },
        options);
  }
};

/// Memory that the ranks of a test share.
class SharedCounter {
 public:
  SharedCounter()
      : value_(new (::mmap(
            nullptr,
            sizeof(std::atomic<int>),
            PROT_READ | PROT_WRITE,
            MAP_SHARED | MAP_ANONYMOUS,
            -1,
            0)) std::atomic<int>(0)) {}
  ~SharedCounter() {
    ::munmap(value_, sizeof(std::atomic<int>));
  }
  SharedCounter(const SharedCounter&) = delete;
  SharedCounter& operator=(const SharedCounter&) = delete;

  void add() const {
    ++*value_;
  }
  /// Whether it reaches `value` within ten seconds.
  bool reaches(int value) const {
    const auto deadline = std::chrono::steady_clock::now() + 10s;
    while (*value_ < value && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(1ms);
    }
    return *value_ >= value;
  }

 private:
  std::atomic<int>* value_;
};

} // namespace

TEST(StreamFlags, CountOnPast32Bits) {
  const StreamFlag flag(3);
  EXPECT_TRUE(has_reached(flag, 3));
  EXPECT_FALSE(has_reached(flag, 4));
  EXPECT_TRUE(has_reached(flag, 0xfffffff0u));
  const StreamFlag before(0xfffffff0u);
  EXPECT_FALSE(has_reached(before, 3));
}

TEST_P(IpcBackendTest, GathersInEveryTypeAndSize) {
  run([](World& world, const Device& device) {
    for (const auto dtype : kTypes) {
      for (const int64_t numel : kNumels) {
        const auto all = at::zeros({numel * world.size()}, dtype);
        const auto local = random_of(world.rank(), numel, dtype);
        const auto in_place = at::zeros_like(all);
        const auto part = in_place.narrow(0, world.rank() * numel, numel);
        part.copy_(local);
        device.comm->all_gather(all, local, "gather");
        device.comm->all_gather(in_place, part, "gather in place");
        ASSERT_TRUE(device.streams->synchronize(10s));
        for (int r = 0; r < world.size(); ++r) {
          const auto expected = random_of(r, numel, dtype);
          ASSERT_TRUE(all.narrow(0, r * numel, numel).equal(expected));
          ASSERT_TRUE(in_place.narrow(0, r * numel, numel).equal(expected));
        }
      }
    }
  });
}

TEST_P(IpcBackendTest, ReducesToTheBitsOfSharedMemory) {
  run([](World& world, const Device& device) {
    Communicator shm(
        "shm",
        c10::make_intrusive<ShmBackend>(
            c10::make_intrusive<c10d::PrefixStore>("shm", world.store()),
            world.rank(),
            world.size(),
            ShmOptions{world.options().timeout}),
        world.options().timeout);
    for (const auto dtype : kTypes) {
      for (const int64_t numel : kNumels) {
        const auto input = random_of(world.rank(), numel * world.size(), dtype);
        const auto expected = at::zeros({numel}, dtype);
        shm.reduce_scatter_sum(expected, input.clone(), "expected").wait();
        const auto expected_sum = input.clone();
        shm.all_reduce_sum(expected_sum, "expected sum").wait();
        const auto expected_max = input.clone();
        shm.all_reduce_max(expected_max, "expected maximum").wait();

        const auto out = at::zeros({numel}, dtype);
        const auto given = input.clone();
        const auto in_place = input.clone();
        const auto part = in_place.narrow(0, world.rank() * numel, numel);
        const auto sum = input.clone();
        const auto largest = input.clone();
        device.comm->reduce_scatter_sum(out, given, "reduce");
        device.comm->reduce_scatter_sum(part, in_place, "reduce in place");
        device.comm->all_reduce_sum(sum, "sum");
        device.comm->all_reduce_max(largest, "maximum");
        ASSERT_TRUE(device.streams->synchronize(10s));
        ASSERT_TRUE(out.equal(expected)) << dtype << " " << numel;
        ASSERT_TRUE(part.equal(expected)) << dtype << " " << numel;
        ASSERT_TRUE(sum.equal(expected_sum)) << dtype << " " << numel;
        ASSERT_TRUE(largest.equal(expected_max)) << dtype << " " << numel;
      }
    }
  });
}

TEST_P(IpcBackendTest, Broadcasts) {
  run([](World& world, const Device& device) {
    for (const int64_t numel : kNumels) {
      for (int root = 0; root < world.size(); ++root) {
        const auto tensor = random_of(world.rank(), numel, at::kFloat);
        device.comm->broadcast(tensor, root, "broadcast");
        ASSERT_TRUE(device.streams->synchronize(10s));
        ASSERT_TRUE(tensor.equal(random_of(root, numel, at::kFloat)));
      }
    }
  });
}

// As a message to a later pipeline stage, which has other things to do first.
TEST_P(IpcBackendTest, ABroadcastDoesNotHoldItsRoot) {
  const SharedCounter sent;
  run([&](World& world, const Device& device) {
    const auto tensor = random_of(world.rank(), 1000, at::kFloat);
    if (world.rank() > 0) {
      EXPECT_TRUE(sent.reaches(1)) << "the root waits for those that read";
    }
    device.comm->broadcast(tensor, 0, "broadcast");
    EXPECT_TRUE(device.streams->synchronize(10s));
    sent.add();
    EXPECT_TRUE(tensor.equal(random_of(0, 1000, at::kFloat)));
  });
}

TEST_P(IpcBackendTest, ExchangesEqualAndUnequalBlocks) {
  run([](World& world, const Device& device) {
    const int ranks = world.size();
    // Of rank `from` for rank `to`: from none to many turns.
    const auto length = [](int from, int to) {
      return int64_t{from} * to * 3001;
    };
    const auto block = [&](int from, int to, int64_t numel) {
      return random_of(from * 10 + to, numel, at::kFloat);
    };
    for (const int64_t equal : {int64_t{-1}, int64_t{0}, int64_t{5000}}) {
      std::vector<at::Tensor> in;
      std::vector<at::Tensor> expected;
      AllToAllBlocks blocks;
      for (int r = 0; r < ranks; ++r) {
        const int64_t sent = equal < 0 ? length(world.rank(), r) : equal;
        const int64_t taken = equal < 0 ? length(r, world.rank()) : equal;
        in.push_back(block(world.rank(), r, sent));
        expected.push_back(block(r, world.rank(), taken));
        blocks.sent.push_back(sent);
        blocks.taken.push_back(taken);
      }
      const auto input = at::cat(in);
      const auto output = at::zeros_like(at::cat(expected));
      if (equal < 0) {
        device.comm->all_to_all(output, input, blocks, "exchange");
      } else {
        device.comm->all_to_all(output, input, "exchange");
      }
      ASSERT_TRUE(device.streams->synchronize(10s));
      ASSERT_TRUE(output.equal(at::cat(expected))) << equal;
    }
  });
}

TEST_P(IpcBackendTest, UnequalBlocksThatDoNotMatchAreTold) {
  run([](World& world, const Device& device) {
    const auto ranks = static_cast<size_t>(world.size());
    AllToAllBlocks blocks{
        std::vector<int64_t>(ranks, 4), std::vector<int64_t>(ranks, 4)};
    if (world.rank() == 0) {
      blocks.taken[1] = 3;
    }
    const auto input = at::zeros({4 * world.size()});
    const auto output =
        at::zeros({4 * world.size() - (world.rank() == 0 ? 1 : 0)});
    if (world.rank() == 0) {
      expect_error(
          [&] { device.comm->all_to_all(output, input, blocks, "exchange"); },
          {"rank 1 sends 16 bytes to rank 0, which expects 12"});
      device.comm->abort();
    } else {
      device.comm->all_to_all(output, input, blocks, "exchange");
      EXPECT_TRUE(device.streams->synchronize(10s));
    }
  });
}

// The host goes on; the collective takes its place between operators.
TEST_P(IpcBackendTest, RunsInTheOrderOfTheStream) {
  const SharedCounter issued;
  run([&](World& world, const Device& device) {
    const int64_t numel = 30'000;
    const auto local = at::zeros({numel});
    const auto all = at::zeros({numel * world.size()});
    const auto sums = at::zeros({world.size()});
    // Slow operators before it, which make its input.
    device.streams->run([&] {
      std::this_thread::sleep_for(50ms);
      local.fill_(world.rank() + 1);
    });
    if (world.rank() == 0) {
      // All others have issued everything before rank 0 issues anything.
      EXPECT_TRUE(issued.reaches(world.size() - 1)) << "a host has waited";
    }
    device.comm->all_gather(all, local, "gather").wait();
    device.streams->run([&] {
      local.fill_(-1); // no rank may see this
      sums.copy_(all.view({world.size(), numel}).amax(1));
      all.fill_(-2);
    });
    device.comm->all_reduce_sum(sums, "sum").wait();
    issued.add();
    ASSERT_TRUE(device.streams->synchronize(10s));
    const auto expected = at::arange(1, world.size() + 1).to(at::kFloat);
    EXPECT_TRUE(sums.equal(expected * world.size()));
  });
}

TEST_P(IpcBackendTest, CollectivesOnSeveralStreamsFollowEachOther) {
  run([](World& world, const Device& device) {
    HostStreams& streams = *device.streams;
    std::vector<HostStreams::Stream> lanes;
    for (int i = 0; i < 3; ++i) {
      lanes.push_back(streams.new_stream());
    }
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    for (int i = 0; i < 60; ++i) {
      streams.make_current(lanes[static_cast<size_t>(i * i % 3)]);
      const int64_t numel = i % 4 == 0 ? 9000 + i : 10 + i;
      inputs.push_back(random_of(world.rank() + i, numel, at::kFloat));
      outputs.push_back(at::zeros({numel * world.size()}));
      device.comm->all_gather(outputs.back(), inputs.back(), "gather");
    }
    ASSERT_TRUE(streams.synchronize(20s));
    for (int i = 0; i < 60; ++i) {
      const auto& output = outputs[static_cast<size_t>(i)];
      const int64_t numel = output.numel() / world.size();
      for (int r = 0; r < world.size(); ++r) {
        ASSERT_TRUE(output.narrow(0, r * numel, numel)
                        .equal(random_of(r + i, numel, at::kFloat)));
      }
    }
  });
}

// Another stream sees the result after wait(), without the host.
TEST_P(IpcBackendTest, AnotherStreamWaitsForAWork) {
  tests::run_ranks(GetParam(), [](World& world) {
    auto streams = std::make_unique<HostStreams>(9);
    HostStreams* driver = streams.get();
    IpcBackend backend(
        world.store(),
        world.rank(),
        world.size(),
        {world.options().timeout, kSlotBytes},
        std::move(streams));
    const auto first = driver->current_stream();
    const auto second = driver->new_stream();
    driver->make_current(first);
    driver->run([] { std::this_thread::sleep_for(100ms); });
    auto local = random_of(world.rank(), 5000, at::kFloat);
    auto all = at::zeros({5000 * world.size()});
    const auto work = backend._allgather_base(all, local);
    driver->make_current(second);
    work->wait(kNoTimeout);
    at::Tensor seen;
    driver->run([&] { seen = all.clone(); });
    ASSERT_TRUE(driver->synchronize(10s));
    for (int r = 0; r < world.size(); ++r) {
      EXPECT_TRUE(
          seen.narrow(0, r * 5000, 5000).equal(random_of(r, 5000, at::kFloat)));
    }
  });
}

TEST_P(IpcBackendTest, ABarrierBlocksTheHost) {
  const SharedCounter arrived;
  run([&](World& world, const Device& device) {
    if (world.rank() == 0) {
      std::this_thread::sleep_for(300ms);
    }
    arrived.add();
    device.comm->barrier();
    EXPECT_TRUE(arrived.reaches(world.size()));
  });
}

// What was issued is carried out, on this rank and for the others.
TEST_P(IpcBackendTest, ACommunicatorEndsAfterItsCollectives) {
  run([](World& world, const Device&) {
    for (int round = 0; round < 5; ++round) {
      Device device = make_device(world);
      const auto local = random_of(world.rank(), 20'000, at::kFloat);
      const auto all = at::zeros({20'000 * world.size()});
      if (round % world.size() == world.rank()) {
        device.streams->run([] { std::this_thread::sleep_for(200ms); });
      }
      device.comm->all_gather(all, local, "gather");
      device.comm.reset();
      for (int r = 0; r < world.size(); ++r) {
        ASSERT_TRUE(all.narrow(0, r * 20'000, 20'000)
                        .equal(random_of(r, 20'000, at::kFloat)));
      }
    }
  });
}

TEST_P(IpcBackendTest, AKilledRankHoldsNoStream) {
  const auto results = tests::run_ranks_expecting(GetParam(), [](World& world) {
    const Device device = make_device(world);
    device.comm->barrier();
    if (world.rank() == 1) {
      ::kill(::getpid(), SIGKILL);
    }
    const auto start = std::chrono::steady_clock::now();
    const auto local = at::ones({100'000});
    const auto all = at::empty({100'000 * world.size()});
    const auto gather = [&] {
      device.comm->all_gather(all, local, "gather").wait();
    };
    gather();
    // Long before the time limit.
    EXPECT_TRUE(device.streams->synchronize(15s));
    expect_error(gather, {"gather failed", "rank 1's process has ended"});
    EXPECT_LT(
        std::chrono::steady_clock::now() - start, world.options().timeout / 2);
  });
  for (size_t r = 0; r < results.size(); ++r) {
    EXPECT_EQ(results[r].exit_code, r == 1 ? 128 + SIGKILL : 0)
        << results[r].output;
  }
}

TEST_P(IpcBackendTest, AnAbortHoldsNoStream) {
  run([](World& world, const Device& device) {
    const auto local = at::ones({100'000});
    const auto all = at::empty({100'000 * world.size()});
    device.comm->barrier();
    if (world.rank() == 0) {
      std::this_thread::sleep_for(300ms);
      device.comm->abort();
      expect_error([&] { device.comm->barrier(); }, {"is gone"});
    } else {
      device.comm->all_gather(all, local, "gather");
      EXPECT_TRUE(device.streams->synchronize(5s));
      expect_error(
          [&] { device.comm->barrier(); }, {"rank 0 has left the group"});
    }
  });
}

TEST_P(IpcBackendTest, ALateRankIsNamed) {
  const SharedCounter failed;
  run([&](World& world, const Device&) {
    const Device device = make_device(world, 3s);
    const auto local = at::ones({100'000});
    const auto all = at::empty({100'000 * world.size()});
    if (world.rank() == 1) {
      EXPECT_TRUE(failed.reaches(world.size() - 1));
      // It learns it too.
      expect_error(
          [&] {
            std::this_thread::sleep_for(300ms);
            device.comm->all_gather(all, local, "gather");
          },
          {"rank 1 fell behind"});
      return;
    }
    device.comm->all_gather(all, local, "gather");
    EXPECT_TRUE(device.streams->synchronize(5s));
    expect_error(
        [&] { device.comm->barrier(); },
        {"nothing has moved for 3 s", "rank 1 fell behind"});
    failed.add();
  });
}

TEST_P(IpcBackendTest, RanksInDifferentCollectivesAreTold) {
  run([](World& world, const Device& device) {
    const auto small = at::zeros({4});
    expect_error(
        [&] {
          if (world.rank() == 0) {
            device.comm->all_reduce_sum(small, "sum of this");
          } else {
            device.comm->all_reduce_max(small, "maximum of that");
          }
          // Who came first hears it from the others.
          device.comm->barrier();
        },
        {"the ranks are in different collectives"});
    EXPECT_TRUE(device.streams->synchronize(5s));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, IpcBackendTest, ::testing::Values(2, 3, 4));

} // namespace tessera::runtime::ipc::ipc_backend_test
