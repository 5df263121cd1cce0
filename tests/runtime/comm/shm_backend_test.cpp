// SPDX-License-Identifier: Apache-2.0
// Collectives over shared memory, with peers' memory read directly and with
// everything passed through in pieces.
#include "tessera/runtime/comm/shm_backend.h"
#include "support/expect_error.h"
#include "support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

namespace tessera::runtime::shm_backend_test {

namespace {

std::unique_ptr<Communicator> communicator_over_shm(World& world, bool direct) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      world.unique_name("test"), world.store());
  const auto timeout = world.options().timeout;
  return std::make_unique<Communicator>(
      "test",
      c10::make_intrusive<ShmBackend>(
          store, world.rank(), world.size(), ShmOptions{timeout, direct}),
      timeout);
}

/// Different on every rank, exact in every type: small integers.
at::Tensor values(int rank, int64_t numel, at::ScalarType dtype) {
  return at::arange(numel, at::kLong)
      .mul_(rank + 3)
      .remainder_(13)
      .sub_(5)
      .to(dtype);
}

at::Tensor sum_in_rank_order(int ranks, int64_t numel, at::ScalarType dtype) {
  at::Tensor sum = values(0, numel, dtype);
  for (int r = 1; r < ranks; ++r) {
    sum = sum + values(r, numel, dtype);
  }
  return sum;
}

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

} // namespace

struct ShmCase {
  int ranks;
  bool direct;
};

class ShmBackendTest : public ::testing::TestWithParam<ShmCase> {
 protected:
  static void run(
      const std::function<void(World&, Communicator&)>& body,
      const tests::RankOptions& options = {}) {
    const bool direct = GetParam().direct;
    tests::run_ranks(
        GetParam().ranks,
        [&](World& world) {
          const auto comm = communicator_over_shm(world, direct);
          body(world, *comm);
        },
        options);
  }
};

// Empty, odd, what just fits a payload, what just does not, and what takes many
// turns of the ring.
constexpr int64_t kNumels[] = {0, 1, 1023, 32768, 32769, 600007};

TEST_P(ShmBackendTest, GathersInEveryTypeAndSize) {
  run([](World& world, Communicator& comm) {
    for (const auto dtype :
         {at::kFloat,
          at::kBFloat16,
          at::kHalf,
          at::kDouble,
          at::kLong,
          at::kByte}) {
      for (const int64_t numel : kNumels) {
        const auto all = at::empty({numel * world.size()}, dtype);
        comm.all_gather(all, values(world.rank(), numel, dtype), "gather")
            .wait();
        for (int r = 0; r < world.size(); ++r) {
          ASSERT_TRUE(at::equal(
              all.narrow(0, r * numel, numel), values(r, numel, dtype)))
              << dtype << " " << numel << " of rank " << r;
        }
      }
    }
  });
}

TEST_P(ShmBackendTest, GathersInPlace) {
  run([](World& world, Communicator& comm) {
    const int64_t numel = 100001;
    const auto all = at::zeros({numel * world.size()});
    const auto self_value = all.narrow(0, world.rank() * numel, numel);
    self_value.copy_(values(world.rank(), numel, at::kFloat));
    comm.all_gather(all, self_value, "gather").wait();
    for (int r = 0; r < world.size(); ++r) {
      EXPECT_TRUE(at::equal(
          all.narrow(0, r * numel, numel), values(r, numel, at::kFloat)));
    }
  });
}

TEST_P(ShmBackendTest, ReducesAndScattersInEveryTypeAndSize) {
  run([](World& world, Communicator& comm) {
    for (const auto dtype :
         {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kInt}) {
      for (const int64_t numel : kNumels) {
        const int64_t full = numel * world.size();
        const auto expected = sum_in_rank_order(world.size(), full, dtype)
                                  .narrow(0, world.rank() * numel, numel);
        const auto input = values(world.rank(), full, dtype);
        const auto out = at::empty({numel}, dtype);
        comm.reduce_scatter_sum(out, input, "reduce").wait();
        ASSERT_TRUE(at::equal(out, expected)) << dtype << " " << numel;
        const auto part = input.narrow(0, world.rank() * numel, numel);
        comm.reduce_scatter_sum(part, input, "reduce in place").wait();
        ASSERT_TRUE(at::equal(part, expected)) << dtype << " " << numel;
      }
    }
  });
}

TEST_P(ShmBackendTest, AllReducesAndBroadcasts) {
  run([](World& world, Communicator& comm) {
    for (const int64_t numel : kNumels) {
      const auto sum = values(world.rank(), numel, at::kFloat);
      comm.all_reduce_sum(sum, "sum").wait();
      ASSERT_TRUE(
          at::equal(sum, sum_in_rank_order(world.size(), numel, at::kFloat)));
      const auto flags = at::zeros({numel}, at::kByte);
      flags.slice(0, world.rank(), std::nullopt, world.size()).fill_(1);
      comm.all_reduce_max(flags, "max").wait();
      ASSERT_TRUE(at::equal(flags, at::ones({numel}, at::kByte)));
      for (int root = 0; root < world.size(); ++root) {
        const auto tensor = values(world.rank(), numel, at::kFloat);
        comm.broadcast(tensor, root, "broadcast").wait();
        ASSERT_TRUE(at::equal(tensor, values(root, numel, at::kFloat)));
      }
    }
  });
}

// In float32 the order of three terms shows in the last bit; in bfloat16 a sum
// that is rounded after each term loses all of the small ones.
TEST_P(ShmBackendTest, AddsUpInRankOrderAndRoundsOnce) {
  run([](World& world, Communicator& comm) {
    const int ranks = world.size();
    for (const int64_t numel : {1000, 200000}) {
      const auto of_rank = [&](int r) {
        auto generator = at::make_generator<at::CPUGeneratorImpl>(r + 1);
        return at::randn({numel}, generator, at::kFloat);
      };
      auto expected = of_rank(0);
      for (int r = 1; r < ranks; ++r) {
        expected = expected + of_rank(r);
      }
      const auto sum = of_rank(world.rank());
      comm.all_reduce_sum(sum, "sum").wait();
      ASSERT_TRUE(at::equal(sum, expected));

      const auto low =
          at::full({numel}, world.rank() == 0 ? 256.0 : 0.75, at::kBFloat16);
      comm.all_reduce_sum(low, "low").wait();
      const auto once =
          at::full({numel}, 256.0 + 0.75 * (ranks - 1)).to(at::kBFloat16);
      ASSERT_TRUE(at::equal(low, once));
    }
  });
}

TEST_P(ShmBackendTest, ManyAreUnderWayAtOnceAndEndInAnyOrder) {
  run([](World& world, Communicator& comm) {
    // Ranks that differ in speed, sizes that alternate between large and small.
    std::mt19937 random(static_cast<unsigned>(world.rank()));
    for (int round = 0; round < 5; ++round) {
      std::vector<at::Tensor> outs;
      std::vector<PendingCollective> pending;
      for (int i = 0; i < 40; ++i) {
        const int64_t numel = i % 3 == 0 ? 60000 + i : 10 + i;
        outs.push_back(at::empty({numel * world.size()}));
        pending.push_back(comm.all_gather(
            outs.back(),
            values(world.rank() + i, numel, at::kFloat),
            "gather"));
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      }
      for (int i = 39; i >= 0; i -= 2) {
        pending[i].wait();
      }
      for (int i = 0; i < 40; ++i) {
        pending[i].wait();
        const int64_t numel = outs[i].numel() / world.size();
        for (int r = 0; r < world.size(); ++r) {
          ASSERT_TRUE(at::equal(
              outs[i].narrow(0, r * numel, numel),
              values(r + i, numel, at::kFloat)));
        }
      }
    }
  });
}

// A rank that computes must not keep the others waiting for its bytes.
TEST_P(ShmBackendTest, ProceedsWhileARankDoesNotWait) {
  void* shared = ::mmap(
      nullptr,
      sizeof(std::atomic<int>),
      PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_ANONYMOUS,
      -1,
      0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* finished = new (shared) std::atomic<int>(0);
  run([finished](World& world, Communicator& comm) {
    const int64_t numel = 3000000;
    const auto all = at::empty({numel * world.size()});
    const auto self_value = values(world.rank(), numel, at::kFloat);
    comm.barrier();
    auto pending = comm.all_gather(all, self_value, "gather");
    if (world.rank() == 0) {
      const auto deadline =
          std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (*finished < world.size() - 1 &&
             std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      EXPECT_EQ(*finished, world.size() - 1) << "the others wait for rank 0";
    }
    pending.wait();
    ++*finished;
    comm.barrier();
  });
  ::munmap(shared, sizeof(std::atomic<int>));
}

TEST_P(ShmBackendTest, WaitingCostsNoProcessorTime) {
  run([](World& world, Communicator& comm) {
    comm.barrier();
    const double before = processor_seconds();
    if (world.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    comm.barrier();
    // A second of spinning would be one; the look-out takes a thousandth.
    EXPECT_LT(processor_seconds() - before, 0.1);
  });
}

TEST_P(ShmBackendTest, RanksInDifferentCollectivesAreTold) {
  const bool direct = GetParam().direct;
  const auto results =
      tests::run_ranks_expecting(GetParam().ranks, [direct](World& world) {
        const auto comm = communicator_over_shm(world, direct);
        const auto small = at::zeros({4});
        if (world.rank() == 0) {
          comm->all_reduce_sum(small, "sum of this").wait();
        } else {
          comm->all_reduce_max(small, "maximum of that").wait();
        }
      });
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_NE(
        result.output.find("the ranks are in different collectives"),
        std::string::npos)
        << result.output;
    EXPECT_EQ(result.output.find("connection was lost"), std::string::npos)
        << "the cause is known: " << result.output;
  }
}

TEST_P(ShmBackendTest, AKilledRankIsNoticedWithinTwoSeconds) {
  const bool direct = GetParam().direct;
  const auto results =
      tests::run_ranks_expecting(GetParam().ranks, [direct](World& world) {
        const auto comm = communicator_over_shm(world, direct);
        comm->barrier();
        if (world.rank() == 1) {
          ::kill(::getpid(), SIGKILL);
        }
        const auto start = std::chrono::steady_clock::now();
        const auto all = at::empty({1000000 * world.size()});
        expect_error(
            [&] {
              comm->all_gather(all, at::ones({1000000}), "gather").wait();
            },
            {"gather failed", "rank 1"});
        EXPECT_LT(
            std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
      });
  for (size_t r = 0; r < results.size(); ++r) {
    EXPECT_EQ(results[r].exit_code, r == 1 ? 128 + SIGKILL : 0)
        << results[r].output;
  }
}

TEST_P(ShmBackendTest, GivingUpIsNoticedAtOnce) {
  run([](World& world, Communicator& comm) {
    comm.barrier();
    auto local = communicator_over_shm(world, GetParam().direct);
    if (world.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      local.reset();
    } else {
      const auto start = std::chrono::steady_clock::now();
      expect_error([&] { local->barrier(); }, {"rank 0", "has left"});
      EXPECT_LT(
          std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
    }
    comm.barrier();
  });
}

TEST_P(ShmBackendTest, LeavesNothingBehind) {
  namespace fs = std::filesystem;
  const auto files = [] {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         fs::directory_iterator("/dev/shm")) {
      ++count;
    }
    return count;
  };
  const auto descriptors = [] {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         fs::directory_iterator("/proc/self/fd")) {
      ++count;
    }
    return count;
  };
  run([&](World& world, Communicator& comm) {
    comm.barrier();
    const size_t before = files();
    const size_t open_before = descriptors();
    for (int i = 0; i < 3; ++i) {
      const auto local = communicator_over_shm(world, GetParam().direct);
      local->barrier();
      EXPECT_LE(files(), before);
    }
    EXPECT_EQ(descriptors(), open_before);
    comm.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ShmBackendTest,
    ::testing::Values(
        ShmCase{2, true},
        ShmCase{2, false},
        ShmCase{3, true},
        ShmCase{3, false},
        ShmCase{5, true}),
    [](const auto& info) {
      return std::to_string(info.param.ranks) +
             (info.param.direct ? "RanksDirect" : "RanksInPieces");
    });

} // namespace tessera::runtime::shm_backend_test
