// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ranks of a job as forks of the test, which join it by tessera::init().

#include "support/launched_job.h"
#include "support/paths.h"

#include "tessera/runtime/launch/port_reservation.h"
#include "tessera/runtime/launch/rank_environment.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace tessera::tests {

/// Runs `body` on so many ranks, in the root of the source tree: they need not
/// load LibTorch again. The test must not have run LibTorch before.
/// @param body returns the exit code of its rank.
inline LaunchedJob::Result run_as_ranks(
    int ranks,
    const std::function<int()>& body) {
  LaunchedJob job([&] {
    std::filesystem::current_path(source_dir());
    if (ranks == 1) {
      return body();
    }
    const runtime::PortReservation port(0);
    std::vector<pid_t> pids;
    for (int rank = 0; rank < ranks; ++rank) {
      pids.push_back(::fork());
      if (pids.back() < 0) {
        std::abort();
      }
      if (pids.back() == 0) {
        for (const std::string& variable : runtime::rank_environment(
                 {.rank = rank,
                  .world_size = ranks,
                  .local_rank = rank,
                  .local_world_size = ranks,
                  .port = port.port()})) {
          const size_t equals = variable.find('=');
          ::setenv(
              variable.substr(0, equals).c_str(),
              variable.substr(equals + 1).c_str(),
              1);
        }
        at::set_num_threads(1); // OMP_NUM_THREADS was read before
        ::_exit(body());
      }
    }
    int code = 0;
    const auto wait_for_one = [&](int options) {
      int status = 0;
      const pid_t pid = ::waitpid(-1, &status, options);
      std::erase(pids, pid);
      if (status != 0 && code == 0) {
        code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
      }
      return pid > 0;
    };
    while (!pids.empty() && code == 0) {
      wait_for_one(0);
    }
    // The one that caused the failure may not have been the first to end;
    // others would wait for it forever.
    for (int i = 0; i < 100 && !pids.empty(); ++i) {
      if (!wait_for_one(WNOHANG)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
    for (const pid_t pid : pids) {
      ::kill(pid, SIGTERM);
    }
    while (!pids.empty()) {
      wait_for_one(0);
    }
    return code;
  });
  return job.wait();
}

/// As run_as_ranks(), for bodies with expectations: a rank fails with one that
/// failed, or with an exception.
inline LaunchedJob::Result on_ranks(
    int ranks,
    const std::function<void()>& body) {
  const auto job = run_as_ranks(ranks, [&] {
    try {
      body();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    std::cout.flush();
    std::fflush(nullptr);
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(job.exit_code, 0) << job.output;
  return job;
}

} // namespace tessera::tests
