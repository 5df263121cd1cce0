// SPDX-License-Identifier: Apache-2.0
#include "support/ranks.h"
#include "tessera/runtime/io/remove_tree.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

namespace tessera::tests {

namespace {

namespace fs = std::filesystem;

/// Whether LeakSanitizer, where it is there, finds memory that nothing points
/// to. It would look by itself at exit(), which a rank never calls.
bool leaks_memory() {
#if defined(__SANITIZE_ADDRESS__)
  return __lsan_do_recoverable_leak_check() != 0;
#else
  return false;
#endif
}

[[noreturn]] void run_rank(
    int rank,
    int world_size,
    const fs::path& folder,
    const std::function<void(World&)>& body,
    const RankOptions& options) {
  const fs::path log = folder / ("rank" + std::to_string(rank));
  const int fd = ::open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
  ::dup2(fd, STDOUT_FILENO);
  ::dup2(fd, STDERR_FILENO);
  int code = 0;
  try {
    at::set_num_threads(1);
    c10::intrusive_ptr<c10d::Store> store;
    if (world_size > 1) {
      store = c10::make_intrusive<c10d::FileStore>(
          (folder / "store").string(), world_size);
    }
    InitOptions init_options;
    init_options.timeout = options.collective_timeout;
    body(init_with_store(store, rank, world_size, init_options));
    code = ::testing::Test::HasFailure() ? 1 : leaks_memory() ? 4 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exception: %s\n", error.what());
    code = 3;
  }
  std::fflush(nullptr);
  // No destructors: the peers may still be talking to this rank's sockets.
  ::_exit(code);
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

} // namespace

std::vector<RankResult> run_ranks_expecting(
    int world_size,
    const std::function<void(World&)>& body,
    const RankOptions& options) {
  std::string name = (fs::temp_directory_path() / "tessera_ranks.XXXXXX");
  if (!::mkdtemp(name.data())) {
    ADD_FAILURE() << "cannot make a folder like " << name;
    return {};
  }
  const fs::path folder = name;
  std::fflush(nullptr);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      run_rank(rank, world_size, folder, body, options);
    }
    pids.push_back(pid);
  }
  std::vector<RankResult> results(pids.size());
  const auto deadline = std::chrono::steady_clock::now() + options.limit;
  size_t running = pids.size();
  bool killed = false;
  while (running > 0) {
    for (size_t i = 0; i < pids.size(); ++i) {
      int status = 0;
      if (pids[i] > 0 && ::waitpid(pids[i], &status, WNOHANG) == pids[i]) {
        pids[i] = -1;
        --running;
        results[i].exit_code =
            WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      }
    }
    if (!killed && std::chrono::steady_clock::now() > deadline) {
      killed = true;
      for (const pid_t pid : pids) {
        if (pid > 0) {
          ::kill(pid, SIGKILL);
        }
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    results[i].output = read_file(folder / ("rank" + std::to_string(i)));
  }
  runtime::remove_tree(folder);
  return results;
}

void run_ranks(
    int world_size,
    const std::function<void(World&)>& body,
    const RankOptions& options) {
  const auto results = run_ranks_expecting(world_size, body, options);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].exit_code, 0)
        << "rank " << i << " of " << world_size
        << (results[i].exit_code == 128 + SIGKILL ? " (killed: time limit?)"
                                                  : "")
        << ":\n"
        << results[i].output;
  }
}

} // namespace tessera::tests
