// SPDX-License-Identifier: Apache-2.0
// The threads of CPU updates: every task once, in order, on cores of their own.
#include "tessera/runtime/threads/thread_pool.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/cpu_update.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tessera::runtime::thread_pool_test {

namespace {

/// Sets a variable of the environment for a scope.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    ::setenv(name, value, 1);
  }
  ~Environment() {
    ::unsetenv(name_);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
};

} // namespace

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool{CpuPlacement(threads)};
    EXPECT_EQ(pool.threads(), threads);
    std::vector<std::atomic<int>> counts(1000);
    pool.run(1000, [&](int64_t i) { ++counts[static_cast<size_t>(i)]; });
    for (const auto& count : counts) {
      ASSERT_EQ(count, 1);
    }
  }
}

TEST(ThreadPool, WaitsForNothing) {
  ThreadPool pool{CpuPlacement(2)};
  pool.run(0, [](int64_t) { FAIL(); });
}

TEST(ThreadPool, AnExceptionReachesTheWaiterAndThePoolGoesOn) {
  ThreadPool pool{CpuPlacement(2)};
  std::atomic<int> ran{0};
  const auto task = [&](int64_t i) {
    ++ran;
    if (i == 3) {
      throw std::runtime_error("task three");
    }
  };
  EXPECT_THROW(pool.run(8, task), std::runtime_error);
  EXPECT_EQ(ran, 8);
  pool.run(8, [&](int64_t) { ++ran; });
  EXPECT_EQ(ran, 16);
}

TEST(ThreadPool, ATaskMayRunTasks) {
  ThreadPool pool{CpuPlacement(2)};
  std::atomic<int> ran{0};
  pool.run(4, [&](int64_t) { pool.run(4, [&](int64_t) { ++ran; }); });
  EXPECT_EQ(ran, 16);
}

TEST(ThreadPool, ManyThreadsMaySubmit) {
  ThreadPool pool{CpuPlacement(3)};
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> users;
  for (int user = 0; user < 4; ++user) {
    users.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        pool.run(7, [&](int64_t k) { sum += k; });
      }
    });
  }
  for (std::thread& user : users) {
    user.join();
  }
  EXPECT_EQ(sum, 4 * 200 * 21);
}

TEST(ThreadPool, AChildProcessHasAPoolOfItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not start threads after a fork of a "
                  "process with threads";
#endif
  update_pool().run(4, [](int64_t) {});
  const pid_t child = ::fork();
  if (child == 0) {
    std::atomic<int> ran{0};
    update_pool().run(64, [&](int64_t) { ++ran; });
    ::_exit(ran == 64 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(CpuPlacement, BindsThreadsToTheirCores) {
  const CpuPlacement placement = place_update_threads({.local_world_size = 1});
  ASSERT_FALSE(placement.cpus().empty());
  if (placement.threads() < 2) {
    GTEST_SKIP() << "one core: the caller, which is not bound, does the work";
  }
  ThreadPool pool(placement);
  std::mutex mutex;
  std::set<int> allowed;
  pool.run(100, [&](int64_t) {
    cpu_set_t set;
    ASSERT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
    EXPECT_EQ(CPU_COUNT(&set), 1);
    const std::lock_guard lock(mutex);
    for (const int cpu : placement.cpus()) {
      if (CPU_ISSET(cpu, &set)) {
        allowed.insert(cpu);
      }
    }
  });
  EXPECT_FALSE(allowed.empty());
}

TEST(CpuPlacement, GoesOnWhereBindingIsRefused) {
  // No machine has this one; the system says that it is invalid.
  ThreadPool pool(CpuPlacement(std::vector<int>{1023, 1022}));
  std::atomic<int> ran{0};
  pool.run(10, [&](int64_t) { ++ran; });
  EXPECT_EQ(ran, 10);
}

TEST(CpuPlacement, DividesTheCoresAmongTheRanks) {
  const auto all = place_update_threads({.local_world_size = 1}).cpus();
  for (int ranks = 1; ranks <= static_cast<int>(all.size()) + 1; ++ranks) {
    std::multiset<int> given;
    for (int rank = 0; rank < ranks; ++rank) {
      const CpuPlacement placement =
          place_update_threads({.local_rank = rank, .local_world_size = ranks});
      EXPECT_GE(placement.threads(), 1);
      given.insert(placement.cpus().begin(), placement.cpus().end());
    }
    if (ranks <= static_cast<int>(all.size())) {
      EXPECT_EQ(given, std::multiset<int>(all.begin(), all.end())) << ranks;
    }
  }
}

TEST(CpuPlacement, ReadsTheRanksOfTorchrun) {
  const auto all = place_update_threads({.local_world_size = 1});
  const Environment size("LOCAL_WORLD_SIZE", "2");
  const Environment rank("LOCAL_RANK", "1");
  EXPECT_EQ(
      place_update_threads({}).threads(),
      std::max(1, all.threads() - all.threads() / 2));
}

TEST(CpuPlacement, TheNumberOfThreadsCanBeSet) {
  EXPECT_EQ(place_update_threads({.threads = 1}).threads(), 1);
  const Environment threads("TESSERA_CPU_THREADS", "70");
  const CpuPlacement many = place_update_threads({});
  EXPECT_EQ(many.threads(), 70);
  // More than there are cores: no core belongs to one of them.
  EXPECT_TRUE(many.cpus().empty());
  EXPECT_EQ(place_update_threads({.threads = 1}).threads(), 1);
}

TEST(CpuPlacement, WrongNumbersAreErrors) {
  for (const char* text : {"0", "-1", "two", "2x", "99999999999"}) {
    const Environment threads("TESSERA_CPU_THREADS", text);
    EXPECT_THROW(place_update_threads({}), Error) << text;
  }
  EXPECT_THROW(CpuPlacement(0), Error);
}

TEST(CpuPlacement, KeepsToTheAffinityMask) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer's own thread keeps the whole mask";
#endif
  const auto all = place_update_threads({.local_world_size = 1}).cpus();
  // In a process of one thread, for the mask of a process is that of all its
  // threads together.
  const pid_t child = ::fork();
  if (child == 0) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(all.back(), &one);
    if (::sched_setaffinity(0, sizeof(one), &one) != 0) {
      ::_exit(1);
    }
    const std::vector<int> last{all.back()};
    const auto alone = place_update_threads({.local_world_size = 1});
    // The parent does not have this mask: it is this rank's own.
    const auto second =
        place_update_threads({.local_rank = 1, .local_world_size = 2});
    ::_exit(alone.cpus() == last && second.cpus() == last ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(CpuUpdates, CoverEveryElementOnceAndTellWhetherAllWereFinite) {
  configure_update_pool(CpuPlacement(3));
  for (const int64_t numel : {int64_t{0}, int64_t{1}, 5 * kUpdateChunk + 7}) {
    std::vector<std::atomic<char>> seen(static_cast<size_t>(numel));
    const CpuUpdate update{numel, [&](int64_t begin, int64_t end) {
                             EXPECT_EQ(begin % kUpdateChunk, 0);
                             for (int64_t i = begin; i < end; ++i) {
                               ++seen[static_cast<size_t>(i)];
                             }
                             return true;
                           }};
    EXPECT_TRUE(run_cpu_updates({update}));
    for (const auto& count : seen) {
      ASSERT_EQ(count, 1);
    }
  }
  const CpuUpdate one_bad{3 * kUpdateChunk, [](int64_t begin, int64_t) {
                            return begin != kUpdateChunk;
                          }};
  EXPECT_FALSE(run_cpu_updates({one_bad}));
  configure_update_pool(place_update_threads({}));
}

} // namespace tessera::runtime::thread_pool_test
