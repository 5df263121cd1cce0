// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/posix_error.h"
#include "tessera/runtime/io/posix_file.h"

namespace tessera::runtime {

namespace {

using std::chrono::milliseconds;

std::string this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return formatted("pid {} on host {}", ::getpid(), host.data());
}

/// What the process that holds the lock has written to the file.
std::string holder_in(int fd) {
  std::array<char, 512> text{};
  const ssize_t count = ::pread(fd, text.data(), text.size(), 0);
  const std::string holder(
      text.data(), count > 0 ? static_cast<size_t>(count) : 0);
  return holder.empty() ? "an unknown process" : holder;
}

/// @return 0 or the errno.
int try_lock(int fd) {
  int result = 0;
  do {
    result = ::flock(fd, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

} // namespace

FileLock::FileLock(
    const std::filesystem::path& file,
    const std::string& label,
    milliseconds patience) {
  constexpr milliseconds kPause{50};
  // Network file systems lock for writing only what is open for writing.
  fd_.reset(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!fd_.is_open()) {
    detail::fail_on("create", file, errno);
  }
  int code = try_lock(fd_.get());
  for (milliseconds waited{0}; code == EWOULDBLOCK && waited < patience;
       waited += kPause) {
    std::this_thread::sleep_for(kPause);
    code = try_lock(fd_.get());
  }
  TESSERA_CHECK(
      code != EWOULDBLOCK,
      "{} is in use: {} writes to it. Wait until that run has ended, or choose another folder.",
      label,
      holder_in(fd_.get()));
  if (code != 0) {
    log_warning(
        "{} cannot be locked ({}): make sure that only one run writes to it",
        label,
        detail::errno_text(code));
    return;
  }
  // Only for messages: a full disk does not matter.
  const std::string text = this_process();
  if (::ftruncate(fd_.get(), 0) == 0) {
    [[maybe_unused]] const ssize_t written =
        ::pwrite(fd_.get(), text.data(), text.size(), 0);
  }
}

} // namespace tessera::runtime
