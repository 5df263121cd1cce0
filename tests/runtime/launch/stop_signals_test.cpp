// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/stop_signals.h"

#include "support/launched_job.h"
#include "tessera/runtime/kernels/cpu_matmul.h"
#include "tessera/runtime/launch/launch.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

namespace tessera::runtime::stop_signals_test {

namespace {

using tests::LaunchedJob;

/// Notes the first signal, then goes on for a minute.
int note_and_stay() {
  const StopSignals signals;
  std::puts("ready");
  std::fflush(stdout);
  for (bool told = false;;) {
    ::usleep(1000);
    if (signals.received() != 0 && !told) {
      told = true;
      std::printf("noted %d\n", signals.received());
      std::fflush(stdout);
    }
  }
}

LaunchOptions shell(const std::string& script) {
  LaunchOptions options;
  options.nproc = 2;
  options.command = {"bash", "-c", script};
  options.grace = std::chrono::milliseconds(1000);
  return options;
}

} // namespace

TEST(StopSignals, NoteTheFirstAndEndAtALaterOne) {
  LaunchedJob job(note_and_stay);
  ASSERT_TRUE(job.wait_for("ready"));
  job.signal(SIGTERM);
  ASSERT_TRUE(job.wait_for("noted 15"));
  job.signal(SIGINT); // of the same request
  ::usleep(1200000);
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait().exit_code, 128 + SIGTERM);
}

TEST(StopSignals, SayWhatIsSavedWhenTheyEndAtOnce) {
  LaunchedJob job([] {
    StopSignals signals;
    signals.end_at_once("all is saved\n");
    std::puts("ready");
    std::fflush(stdout);
    ::sleep(60);
    return 0;
  });
  ASSERT_TRUE(job.wait_for("ready"));
  job.signal(SIGINT);
  const auto result = job.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
  EXPECT_EQ(job.count("all is saved"), 1) << result.output;
}

TEST(StopSignals, StayIgnoredIfTheyWere) {
  LaunchedJob job([] {
    ::signal(SIGHUP, SIG_IGN);
    const StopSignals signals;
    ::raise(SIGHUP);
    return signals.received() == 0 ? 0 : 1;
  });
  EXPECT_EQ(job.wait().exit_code, 0);
}

// A rank that answers a signal with its code is no failure: a slower one has
// all the time it needs.
TEST(StopSignals, RanksMayEndOneAfterTheOther) {
  LaunchedJob job([] {
    return launch(
        shell("trap 'sleep $((3 * RANK)); echo saved; exit 143' TERM; "
              "echo ready; while :; do sleep 0.1; done"));
  });
  ASSERT_TRUE(job.wait_for("ready", 2));
  job.signal(SIGTERM);
  const auto result = job.wait();
  EXPECT_EQ(result.exit_code, 143);
  EXPECT_EQ(job.count("saved"), 2) << result.output;
  EXPECT_EQ(job.count("error"), 0) << result.output;
}

// oneDNN's kernels use the stack pointer for other purposes; a handler on the
// ordinary stack would overwrite the heap.
TEST(StopSignals, DoNotDisturbMatrixProducts) {
  LaunchedJob job([] {
    set_cpu_matmul(CpuMatmul::kOneDnn);
    const StopSignals signals;
    stack_t stack{};
    ::sigaltstack(nullptr, &stack);
    if ((stack.ss_flags & SS_DISABLE) != 0) {
      return 2;
    }
    // All within the second that counts as one request.
    std::atomic<bool> is_over = false;
    std::thread sender([&] {
      for (int i = 0; i < 3000 && !is_over; ++i) {
        ::kill(::getpid(), SIGTERM);
        ::usleep(200);
      }
      is_over = true;
    });
    const auto start = std::chrono::steady_clock::now();
    const torch::Tensor a = torch::rand({300, 400});
    const torch::Tensor b = torch::rand({400, 500});
    while (!is_over) {
      torch::mm(a, b);
      is_over = is_over || std::chrono::steady_clock::now() - start >
                               std::chrono::milliseconds(800);
    }
    sender.join();
    return signals.received() == SIGTERM ? 0 : 3;
  });
  const auto result = job.wait();
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

} // namespace tessera::runtime::stop_signals_test
