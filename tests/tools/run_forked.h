// SPDX-License-Identifier: Apache-2.0
#pragma once
// Commands of tessera-run without a program: a test runs many of them.

#include "support/launched_job.h"
#include "support/paths.h"

#include "program_main.h"
#include "tessera/runtime/launch/port_reservation.h"
#include "tessera/runtime/launch/rank_environment.h"

#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

namespace tessera::tests {

/// A command of tessera-run over so many ranks, as forks of the test: they need
/// not load LibTorch again. It runs in the root of the source tree. The test
/// must not have run LibTorch before.
inline LaunchedJob::Result run_forked(
    int ranks,
    const std::vector<std::string>& words) {
  const auto run = [&words] {
    std::vector<std::string> arguments{"tessera-run"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    std::vector<char*> argv;
    for (std::string& argument : arguments) {
      argv.push_back(argument.data());
    }
    argv.push_back(nullptr);
    const int code =
        tools::run_command(static_cast<int>(arguments.size()), argv.data());
    std::cout.flush();
    std::fflush(nullptr);
    return code;
  };
  LaunchedJob job([&] {
    std::filesystem::current_path(source_dir());
    if (ranks == 1) {
      return run();
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
                 {.rank = rank, .world_size = ranks, .port = port.port()})) {
          const size_t equals = variable.find('=');
          ::setenv(
              variable.substr(0, equals).c_str(),
              variable.substr(equals + 1).c_str(),
              1);
        }
        at::set_num_threads(1); // OMP_NUM_THREADS was read before
        ::_exit(run());
      }
    }
    int code = 0;
    for (int left = ranks; left > 0; --left) {
      int status = 0;
      std::erase(pids, ::wait(&status));
      if (status != 0 && code == 0) {
        code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        for (const pid_t pid : pids) {
          ::kill(pid, SIGTERM); // they would wait for the one that failed
        }
      }
    }
    return code;
  });
  return job.wait();
}

} // namespace tessera::tests
