// SPDX-License-Identifier: Apache-2.0
#pragma once
// A launcher in a child process of the test, so that the test can watch it,
// signal it and kill it.

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>

namespace tessera::tests {

class LaunchedJob {
 public:
  struct Result {
    /// 128 + signal when the launcher was killed.
    int exit_code = -1;
    double seconds = 0;
    /// Standard output and standard error together.
    std::string output;
  };

  /// The exit code that says that the launcher left children unreaped.
  static constexpr int kLeftChildren = 99;

  /// @param launcher runs in the child and returns its exit code.
  /// @param terminal a terminal for the launcher's output, or -1 for a pipe.
  explicit LaunchedJob(
      const std::function<int()>& launcher,
      int terminal = -1) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      std::abort();
    }
    started_ = std::chrono::steady_clock::now();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      const int out = terminal >= 0 ? terminal : ends[1];
      ::dup2(out, STDOUT_FILENO);
      ::dup2(out, STDERR_FILENO);
      const int code = launcher();
      const bool no_child = ::waitpid(-1, nullptr, WNOHANG) < 0;
      ::_exit(no_child && errno == ECHILD ? code : kLeftChildren);
    }
    ::close(ends[1]);
    output_fd_ = ends[0];
  }
  ~LaunchedJob() {
    close_output();
    if (!reaped_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  LaunchedJob(const LaunchedJob&) = delete;
  LaunchedJob& operator=(const LaunchedJob&) = delete;

  void signal(int number) const {
    ::kill(pid_, number);
  }

  /// As a reader does that does not want to know any more.
  void close_output() {
    if (output_fd_ >= 0) {
      ::close(output_fd_);
      output_fd_ = -1;
    }
  }

  /// Reads until `text` has been printed `times` times; false when half a
  /// minute or the output ended first.
  bool wait_for(const std::string& text, int times = 1) {
    while (count(text) < times) {
      if (!read_more()) {
        return false;
      }
    }
    return true;
  }

  /// Reads all output and waits for the launcher to end.
  Result wait() {
    while (read_more()) {
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    reaped_ = true;
    const std::chrono::duration<double> elapsed =
        std::chrono::steady_clock::now() - started_;
    return {
        WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
        elapsed.count(),
        output_};
  }

  const std::string& output() const {
    return output_;
  }

  int count(const std::string& text) const {
    int found = 0;
    for (auto at = output_.find(text); at != std::string::npos;
         at = output_.find(text, at + text.size())) {
      ++found;
    }
    return found;
  }

 private:
  bool read_more() {
    constexpr int kPatienceMs = 120000; // of a busy machine
    pollfd entry{output_fd_, POLLIN, 0};
    if (output_fd_ < 0 || ::poll(&entry, 1, kPatienceMs) != 1) {
      return false;
    }
    char bytes[4096];
    const auto count = ::read(output_fd_, bytes, sizeof(bytes));
    if (count <= 0) {
      return false;
    }
    output_.append(bytes, static_cast<std::size_t>(count));
    return true;
  }

  pid_t pid_ = -1;
  int output_fd_ = -1;
  bool reaped_ = false;
  std::string output_;
  std::chrono::steady_clock::time_point started_;
};

/// Waits up to ten seconds for a process to be gone or a zombie of somebody
/// else's.
inline bool is_gone_soon(pid_t pid) {
  for (int i = 0; i < 1000; ++i) {
    char state = 'Z';
    const std::string path = "/proc/" + std::to_string(pid) + "/stat";
    if (const int fd = ::open(path.c_str(), O_RDONLY); fd >= 0) {
      char bytes[512] = {};
      [[maybe_unused]] const auto count = ::read(fd, bytes, sizeof(bytes) - 1);
      ::close(fd);
      const std::string text = bytes;
      const auto name_end = text.rfind(") ");
      state = name_end == std::string::npos ? 'Z' : text[name_end + 2];
    }
    if (state == 'Z' || state == 'X') {
      return true;
    }
    ::usleep(10000);
  }
  return false;
}

} // namespace tessera::tests
