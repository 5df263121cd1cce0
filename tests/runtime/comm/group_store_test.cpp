// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/group_store.h"

#include "support/expect_error.h"
#include "support/forked_ranks.h"
#include "support/ranks.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/rank_ends.h"
#include "tessera/runtime/comm/shm_meeting.h"
#include "tessera/runtime/comm/store_text.h"
#include "tessera/runtime/core/log.h"

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace tessera::runtime::group_store_test {

namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

/// Ranks 4, 5 and 8 of a job.
c10::intrusive_ptr<GroupStore> group_of_three(
    const c10::intrusive_ptr<c10d::Store>& job,
    int rank,
    milliseconds timeout,
    milliseconds notice_interval = minutes(1)) {
  return c10::make_intrusive<GroupStore>(
      job,
      GroupStore::Group{"making the group 'x'", "x", rank, {4, 5, 8}},
      timeout,
      notice_interval);
}

/// Ends when `call` has thrown an Error with these texts; else the test fails.
template <typename Call>
int expect_failure(const Call& call, std::initializer_list<const char*> texts) {
  expect_error(call, texts);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

} // namespace

TEST(GroupStore, NamesTheRanksThatDoNotCome) {
  const auto job = c10::make_intrusive<c10d::HashStore>();
  const auto first = group_of_three(job, 0, milliseconds(150));
  expect_error(
      [&] { first->get("key"); },
      {"making the group 'x' failed: ranks 5 and 8 have not come within 0 s",
       "TESSERA_TIMEOUT_S"});
  const auto third = group_of_three(job, 2, milliseconds(150));
  expect_error([&] { third->get("key"); }, {"rank 5 has not come"});
  const auto second = group_of_three(job, 1, milliseconds(150));
  expect_error(
      [&] { second->get("key"); }, {"all ranks have come, but one did not"});
}

TEST(GroupStore, LogsWhichRanksItWaitsForOnceForAll) {
  const auto job = c10::make_intrusive<c10d::HashStore>();
  const auto second =
      group_of_three(job, 1, milliseconds(500), milliseconds(100));
  const auto third =
      group_of_three(job, 2, milliseconds(500), milliseconds(100));
  ::testing::internal::CaptureStderr();
  std::thread other([&] { EXPECT_THROW(third->get("key"), LostRankError); });
  EXPECT_THROW(second->get("key"), LostRankError);
  other.join();
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string line = "making the group 'x': waiting for rank 4 for 0 s";
  const size_t first = log.find(line);
  EXPECT_NE(first, std::string::npos) << log;
  size_t lines = 0;
  for (size_t at = first; at != std::string::npos;
       at = log.find(line, at + 1)) {
    ++lines;
  }
  EXPECT_LE(lines, 5u) << log; // of one rank: the first that has come
}

TEST(GroupStore, AReportOfOneRankEndsTheWaitsOfTheOthers) {
  const auto job = c10::make_intrusive<c10d::HashStore>();
  const auto first = group_of_three(job, 0, minutes(5));
  const auto third = group_of_three(job, 2, minutes(5));
  std::thread other([&] {
    expect_error(
        [&] { first->get("key"); },
        {"making the group 'x' failed: rank 8: no memory"});
  });
  third->report("no memory");
  other.join();
}

// c10d's stores wait with the lock of their connection held.
TEST(GroupStore, AWaitOfOneGroupDoesNotDelayAnother) {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = std::chrono::seconds(20);
  const auto job = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const auto store_of = [&](const char* key) {
    return c10::make_intrusive<GroupStore>(
        job, GroupStore::Group{key, key, 0, {0}}, std::chrono::seconds(20));
  };
  const auto one = store_of("one");
  const auto two = store_of("two");
  std::thread waits([&] { EXPECT_EQ(to_text(one->get("key")), "value"); });
  // It waits by now, or soon.
  std::this_thread::sleep_for(milliseconds(100));
  for (int i = 0; i < 50; ++i) {
    const std::string key = std::to_string(i);
    two->set(key, to_bytes(key));
    EXPECT_EQ(to_text(two->get(key)), key);
  }
  // What it waits for comes only now, over the same connection.
  one->set("key", to_bytes("value"));
  waits.join();
}

TEST(GroupStore, AnyExceptionOfOneRankIsToldToAll) {
  tests::run_ranks(3, [](World& world) {
    const auto meet_with = [&](const char* key, const auto& fail) {
      all_succeed(*world.store(), key, world.rank(), 3, [&] {
        if (world.rank() == 1) {
          fail();
        }
      });
    };
    for (const int from : {0, 1}) {
      const std::string key = "c10 " + std::to_string(from);
      expect_error(
          [&] {
            all_succeed(*world.store(), key, world.rank(), 3, [&] {
              TORCH_CHECK(world.rank() != from, "the device is broken");
            });
          },
          {("rank " + std::to_string(from) + ": the device is broken")
               .c_str()});
    }
    expect_error(
        [&] { meet_with("bad_alloc", [] { throw std::bad_alloc(); }); },
        {"rank 1: std::bad_alloc"});
    meet_with("good", [] {});
  });
}

// Only rank 1 has a wrong setting. It lives on until the others have failed.
TEST(GroupStore, ARankThatCannotMakeAGroupEndsTheOthersAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  tests::run_ranks(3, [](World& world) {
    if (world.rank() == 1) {
      ::setenv("TESSERA_TRANSPORT", "pigeon", 1);
    }
    expect_error(
        [&] { world.new_communicator("all"); },
        {world.rank() == 1
             ? "TESSERA_TRANSPORT is 'pigeon'"
             : "making the group 'all' failed: rank 1: the environment "
               "variable TESSERA_TRANSPORT is 'pigeon'"});
    world.store()->add("failed ranks", 1);
    while (world.store()->add("failed ranks", 0) < 3) {
      std::this_thread::sleep_for(milliseconds(5));
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

// In a group of some ranks, a rank has another number than in the job.
TEST(GroupStore, ACollectiveNamesRanksAsInTheJob) {
  tests::run_ranks(4, [](World& world) {
    const int first = world.rank() / 2 * 2;
    auto pair = world.new_communicator("pair", at::kCPU, {first, first + 1});
    pair->barrier();
    if (world.rank() == 3) {
      pair.reset();
      while (!world.store()->check({"done"})) {
        std::this_thread::sleep_for(milliseconds(5));
      }
    } else if (world.rank() == 2) {
      expect_error([&] { pair->barrier(); }, {"rank 3 has left the group"});
      world.store()->set("done", to_bytes("1"));
    }
  });
}

class RankThatEnds : public ::testing::TestWithParam<int> {};

// Rank 0 hosts the store.
TEST_P(RankThatEnds, IsNamedWhereAGroupIsMade) {
  const int ends = GetParam();
  const auto job = tests::run_as_ranks(3, [&] {
    World& world = init({.timeout = minutes(5)});
    if (world.rank() == ends) {
      std::exit(0);
    }
    const std::string name = "rank " + std::to_string(ends);
    const int code = expect_failure(
        [&] { world.new_communicator("all"); },
        {"making the group 'all' failed: ", name.c_str()});
    return code;
  });
  EXPECT_EQ(job.exit_code, 0) << job.output;
  EXPECT_LT(job.seconds, 60);
}

INSTANTIATE_TEST_SUITE_P(Ranks, RankThatEnds, ::testing::Values(0, 1));

TEST(GroupStore, SaysThatARankEndedEarlyOrFailed) {
  const auto job = tests::run_as_ranks(3, [] {
    World& world = init({.timeout = minutes(5)});
    if (world.rank() == 1) {
      std::exit(0);
    }
    return expect_failure(
        [&] { world.new_communicator("all"); },
        {"rank 1 ended early, with exit code 0; all ranks must make the same "
         "calls"});
  });
  EXPECT_EQ(job.exit_code, 0) << job.output;
  EXPECT_EQ(
      text_of_end({3, ProcessEnd{false, 0}, 2}),
      "rank 3 ended early, after 2 steps, with exit code 0; all ranks must "
      "run the same number of steps");
  EXPECT_EQ(
      text_of_end({3, ProcessEnd{true, 9}, 1}),
      "rank 3 was killed by signal 9 (SIGKILL) after 1 step; its own error "
      "says why");
  EXPECT_EQ(
      text_of_end({3, {}, {}}),
      "rank 3's process has ended; its own error says why");
}

// The reason is in the store that ends with rank 0.
TEST(GroupStore, Rank0StaysUntilTheOthersHaveSeenTheReason) {
  const auto job = tests::run_as_ranks(4, [] {
    World& world = init({.timeout = minutes(5)});
    if (world.rank() == 1) {
      std::exit(0);
    }
    std::this_thread::sleep_for(milliseconds(400) * world.rank());
    return expect_failure(
        [&] { world.new_communicator("all"); },
        {"rank 1 ended early, with exit code 0"});
  });
  EXPECT_EQ(job.exit_code, 0) << job.output;
}

// A process of this host that does not end by exit() is found in /proc.
TEST(GroupStore, SeesThatAProcessOfThisHostIsGone) {
  const auto start = std::chrono::steady_clock::now();
  const auto results = tests::run_ranks_expecting(2, [](World& world) {
    if (world.rank() == 1) {
      ::_exit(9);
    }
    expect_error([&] { world.new_communicator("all"); }, {"rank 1"});
  });
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  EXPECT_EQ(results[1].exit_code, 9);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(UncaughtErrors, AreLoggedAndEndTheRankWithOne) {
  const auto results = tests::run_ranks_expecting(2, [](World& world) {
    std::thread([&]() noexcept {
      TORCH_CHECK(false, "no such file on ", world.rank());
    }).join();
  });
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].exit_code, 1) << results[rank].output;
    const std::string number = std::to_string(rank);
    EXPECT_EQ(
        results[rank].output,
        "tessera: rank " + number + ": error: no such file on " + number +
            "\n");
  }
}

} // namespace tessera::runtime::group_store_test
