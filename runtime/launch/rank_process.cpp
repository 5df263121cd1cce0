// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/rank_process.h"

#include "tessera/runtime/core/error.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tessera::runtime {

namespace {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

Pipe make_pipe() {
  int ends[2];
  TESSERA_CHECK(
      ::pipe2(ends, O_CLOEXEC) == 0,
      "cannot open a pipe to a rank: {}",
      std::strerror(errno));
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<char*> c_strings(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& string : strings) {
    pointers.push_back(const_cast<char*>(string.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

/// Data that the child needs between fork and exec, where nothing may be
/// allocated.
struct ChildSetup {
  pid_t parent;
  int in;
  int out;
  int err;
  char** command;
  char** environment;
  const sigset_t* mask;
};

/// Executes the rank's program. Returns only on failure, with errno set.
void become_rank(const ChildSetup& setup) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != setup.parent) {
    // The launcher died before the kernel was told to watch it.
    ::_exit(1);
  }
  ::dup2(setup.in, STDIN_FILENO);
  ::dup2(setup.out, STDOUT_FILENO);
  ::dup2(setup.err, STDERR_FILENO);
  ::sigprocmask(SIG_SETMASK, setup.mask, nullptr);
  ::execvpe(setup.command[0], setup.command, setup.environment);
}

} // namespace

int ProcessEnd::exit_code() const {
  constexpr int kSignalBase = 128;
  return by_signal ? kSignalBase + value : value;
}

std::string ProcessEnd::describe() const {
  return by_signal ? "was killed by signal " + describe_signal(value)
                   : "exited with code " + std::to_string(value);
}

std::string describe_signal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return std::to_string(signal) +
         (name == nullptr ? "" : " (SIG" + std::string(name) + ")");
}

RankProcess::RankProcess(
    const std::vector<std::string>& command,
    const std::vector<std::string>& environment,
    const sigset_t& mask) {
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  // Closed by a successful exec; carries errno after a failed one.
  Pipe exec_report = make_pipe();
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto arguments = c_strings(command);
  auto variables = c_strings(environment);
  const ChildSetup setup{
      ::getpid(),
      nothing.get(),
      out.write_end.get(),
      err.write_end.get(),
      arguments.data(),
      variables.data(),
      &mask};

  pid_ = ::fork();
  TESSERA_CHECK(pid_ >= 0, "cannot start a process: {}", std::strerror(errno));
  if (pid_ == 0) {
    become_rank(setup);
    const int error = errno;
    [[maybe_unused]] const auto notified =
        ::write(exec_report.write_end.get(), &error, sizeof(error));
    ::_exit(127);
  }

  exec_report.write_end.reset();
  int error = 0;
  ssize_t count = 0;
  do {
    count = ::read(exec_report.read_end.get(), &error, sizeof(error));
  } while (count < 0 && errno == EINTR);
  if (count == sizeof(error)) {
    exec_error_ = error;
  }
  out_ = std::move(out.read_end);
  err_ = std::move(err.read_end);
  ::fcntl(out_.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(err_.get(), F_SETFL, O_NONBLOCK);
}

RankProcess::~RankProcess() {
  signal_group(SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

const std::optional<ProcessEnd>& RankProcess::poll_end() {
  if (!end_) {
    siginfo_t info{};
    const int failed =
        ::waitid(P_PID, pid_, &info, WEXITED | WNOHANG | WNOWAIT);
    if (failed == 0 && info.si_pid == pid_) {
      end_ = ProcessEnd{info.si_code != CLD_EXITED, info.si_status};
    }
  }
  return end_;
}

void RankProcess::signal_group(int signal) const {
  ::kill(-pid_, signal);
}

} // namespace tessera::runtime
