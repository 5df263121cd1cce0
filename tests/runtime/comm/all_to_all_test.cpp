// SPDX-License-Identifier: Apache-2.0
// All-to-all over every transport: equal blocks, and blocks of any length.
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/shm_backend.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <numeric>
#include <thread>

namespace tessera::runtime::all_to_all_test {

namespace {

enum class Transport { kShmDirect, kShmInChunks, kGloo };

constexpr const char* kNames[] = {"ShmDirect", "ShmInPieces", "Gloo"};

std::unique_ptr<Communicator> communicator_over(
    World& world,
    Transport transport) {
  if (world.size() == 1 || transport == Transport::kGloo) {
    ::setenv("TESSERA_TRANSPORT", "gloo", /*overwrite=*/1);
    return world.new_communicator("test");
  }
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      world.unique_name("test"), world.store());
  const auto timeout = world.options().timeout;
  const bool direct = transport == Transport::kShmDirect;
  return std::make_unique<Communicator>(
      "test",
      c10::make_intrusive<ShmBackend>(
          store, world.rank(), world.size(), ShmOptions{timeout, direct}),
      timeout);
}

/// What `from` sends to `to`: another sequence of small integers for each pair,
/// exact in every type.
at::Tensor block(int from, int to, int64_t numel, at::ScalarType dtype) {
  return at::arange(numel, at::kLong)
      .mul_(from + 2)
      .add_(5 * to)
      .remainder_(11)
      .to(dtype);
}

/// So many elements: uneven, some 0, some larger than a payload of shared
/// memory; not the same in both directions.
int64_t length_between(int from, int to) {
  constexpr int64_t kLengths[] = {0, 7, 100003, 1, 513};
  return kLengths[(from + 2 * to) % 5];
}

constexpr at::ScalarType kTypes[] = {
    at::kFloat,
    at::kBFloat16,
    at::kHalf,
    at::kDouble,
    at::kLong,
    at::kInt,
    at::kByte,
    at::kBool};

} // namespace

struct AllToAllCase {
  int ranks;
  Transport transport;
};

class AllToAllTest : public ::testing::TestWithParam<AllToAllCase> {
 protected:
  static void run(const std::function<void(World&, Communicator&)>& body) {
    const Transport transport = GetParam().transport;
    tests::run_ranks(GetParam().ranks, [&](World& world) {
      const auto comm = communicator_over(world, transport);
      body(world, *comm);
    });
  }
};

TEST_P(AllToAllTest, MovesEqualBlocksOfEveryTypeAndSize) {
  run([](World& world, Communicator& comm) {
    const int me = world.rank();
    for (const auto dtype : kTypes) {
      for (const int64_t numel : {0, 1, 1023, 16384, 200003}) {
        std::vector<at::Tensor> sent;
        std::vector<at::Tensor> expected;
        for (int r = 0; r < world.size(); ++r) {
          sent.push_back(block(me, r, numel, dtype));
          expected.push_back(block(r, me, numel, dtype));
        }
        const at::Tensor out = at::empty({numel * world.size()}, dtype);
        comm.all_to_all(out, at::cat(sent), "exchange").wait();
        ASSERT_TRUE(out.equal(at::cat(expected))) << dtype << " " << numel;
      }
    }
  });
}

TEST_P(AllToAllTest, MovesBlocksOfAnyLength) {
  run([](World& world, Communicator& comm) {
    const int me = world.rank();
    for (const auto dtype : kTypes) {
      AllToAllBlocks blocks;
      std::vector<at::Tensor> sent;
      std::vector<at::Tensor> expected;
      for (int r = 0; r < world.size(); ++r) {
        blocks.sent.push_back(length_between(me, r));
        blocks.taken.push_back(length_between(r, me));
        sent.push_back(block(me, r, blocks.sent.back(), dtype));
        expected.push_back(block(r, me, blocks.taken.back(), dtype));
      }
      const at::Tensor all = at::cat(expected);
      const at::Tensor out = at::empty_like(all);
      comm.all_to_all(out, at::cat(sent), blocks, "exchange").wait();
      ASSERT_TRUE(out.equal(all)) << dtype;
    }
  });
}

// Ranks that differ in speed; another collective in between.
TEST_P(AllToAllTest, ManyAreUnderWayAtOnce) {
  run([](World& world, Communicator& comm) {
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outs;
    std::vector<PendingCollective> pending;
    for (int i = 0; i < 20; ++i) {
      const int64_t numel = i % 3 == 0 ? 40000 : 10;
      inputs.push_back(
          at::full({numel * world.size()}, 100.0 * i + world.rank()));
      outs.push_back(at::empty_like(inputs.back()));
      pending.push_back(
          comm.all_to_all(outs.back(), inputs.back(), "exchange"));
      if (i == 10) {
        const at::Tensor one = at::ones({1});
        comm.all_reduce_sum(one, "sum").wait();
        EXPECT_EQ(one.item<float>(), world.size());
      }
      if (world.rank() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    for (int i = 19; i >= 0; --i) {
      pending[i].wait();
    }
    for (int i = 0; i < 20; ++i) {
      const at::Tensor by_rank = outs[i].view({world.size(), -1});
      for (int r = 0; r < world.size(); ++r) {
        EXPECT_TRUE(by_rank[r].eq(100.0 * i + r).all().item<bool>());
      }
    }
  });
}

TEST_P(AllToAllTest, AKilledRankIsAnError) {
  const AllToAllCase& test_case = GetParam();
  if (test_case.ranks == 1) {
    return; // nobody else to lose
  }
  const auto results =
      tests::run_ranks_expecting(test_case.ranks, [&](World& world) {
        const auto comm = communicator_over(world, test_case.transport);
        comm->barrier(); // connected
        if (world.rank() == 1) {
          // Not before the others have seen the barrier's end.
          std::this_thread::sleep_for(std::chrono::seconds(1));
          ::kill(::getpid(), SIGKILL);
        }
        const int64_t numel = 300000 * world.size();
        const at::Tensor out = at::empty({numel});
        expect_error(
            [&] {
              comm->all_to_all(out, at::ones({numel}), "exchange").wait();
            },
            {"exchange failed"});
      });
  for (size_t r = 0; r < results.size(); ++r) {
    EXPECT_EQ(results[r].exit_code, r == 1 ? 128 + SIGKILL : 0)
        << results[r].output;
  }
}

TEST_P(AllToAllTest, BlocksThatDoNotFitTheTensorAreNamed) {
  run([](World& world, Communicator& comm) {
    const at::Tensor five = at::zeros({5});
    std::vector<int64_t> fours(static_cast<size_t>(world.size()), 0);
    fours[0] = 4;
    expect_error(
        [&] {
          comm.all_to_all(five, five, {fours, fours}, "exchange");
        },
        {"exchange", "5 elements", "of 4 elements in total"});
    const std::vector<int64_t> many(static_cast<size_t>(world.size() + 1), 0);
    expect_error(
        [&] {
          comm.all_to_all(five, five, {many, many}, "exchange");
        },
        {"one block for each of", "negative length"});
    expect_error(
        [&] { comm.all_to_all(at::zeros({7}), five, "exchange"); },
        {"from 5", "to 7"});
    comm.barrier(); // the other ranks may still be connecting by Gloo
  });
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    AllToAllTest,
    ::testing::Values(
        AllToAllCase{1, Transport::kShmDirect},
        AllToAllCase{2, Transport::kShmDirect},
        AllToAllCase{3, Transport::kShmDirect},
        AllToAllCase{4, Transport::kShmDirect},
        AllToAllCase{2, Transport::kShmInChunks},
        AllToAllCase{3, Transport::kShmInChunks},
        AllToAllCase{4, Transport::kShmInChunks},
        AllToAllCase{2, Transport::kGloo},
        AllToAllCase{3, Transport::kGloo},
        AllToAllCase{4, Transport::kGloo}),
    [](const auto& info) {
      return std::to_string(info.param.ranks) + "Ranks" +
             kNames[static_cast<int>(info.param.transport)];
    });

// Each rank knows its own rows and columns only; shared memory compares them.
TEST(ShmAllToAll, RanksThatDisagreeAboutABlockAreTold) {
  for (const auto transport :
       {Transport::kShmDirect, Transport::kShmInChunks}) {
    const auto results =
        tests::run_ranks_expecting(2, [transport](World& world) {
          const auto comm = communicator_over(world, transport);
          const at::Tensor four = at::zeros({4});
          const AllToAllBlocks self_blocks =
              world.rank() == 0 ? AllToAllBlocks{{1, 3}, {1, 3}}
                                : AllToAllBlocks{{2, 2}, {2, 2}};
          comm->all_to_all(at::empty({4}), four, self_blocks, "exchange")
              .wait();
        });
    for (const auto& result : results) {
      EXPECT_EQ(result.exit_code, 3);
      EXPECT_NE(
          result.output.find("disagree about an all-to-all"), std::string::npos)
          << result.output;
    }
  }
}

} // namespace tessera::runtime::all_to_all_test
