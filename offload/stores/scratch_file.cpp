// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/stores/scratch_file.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/posix_error.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

namespace tessera::offload {

namespace fs = std::filesystem;

namespace {

/// A name that is unique over all files of all processes on this host.
std::string new_name() {
  static std::atomic<int> count{0};
  return "tessera-" + std::to_string(::getpid()) + "-" +
         std::to_string(count++) + ".tmp";
}

} // namespace

ScratchFile::ScratchFile(const fs::path& folder, const IoCalls& calls)
    : calls_(calls) {
  int fd = -EEXIST; // of another host that shares the folder, or left over
  for (int attempt = 0; fd == -EEXIST && attempt < 1000; ++attempt) {
    path_ = (folder / new_name()).string();
    fd = calls_.create(path_.c_str());
  }
  TESSERA_CHECK(
      fd >= 0,
      "memory.nvme_path: cannot create the file '{}': {}; {}, or set memory.nvme_path to another folder.",
      path_,
      runtime::detail::errno_text(-fd),
      runtime::detail::errno_remedy(-fd));
  fd_.reset(fd);
  std::error_code ignored; // it may have been removed already
  fs::remove(path_, ignored);
  if (const int code = calls_.set_direct(fd, true)) {
    use_buffers(code);
  }
}

void ScratchFile::use_buffers(int why) {
  if (!direct_) {
    return;
  }
  direct_ = false;
  log_info(
      "memory.nvme_path: the file system of '{}' does not support O_DIRECT ({}); its data goes through the page cache.",
      path_,
      runtime::detail::errno_text(why));
  (void)calls_.set_direct(fd(), false);
}

int64_t ScratchFile::extend(const std::string& name, int64_t bytes) {
  const int64_t begin = bytes_;
  const int64_t end = begin + rounded(bytes);
  if (end == begin) {
    return begin;
  }
  if (const int code = calls_.allocate(fd(), end)) {
    std::error_code unknown;
    const auto space = fs::space(fs::path(path_).parent_path(), unknown);
    TESSERA_FAIL(
        "memory.nvme_path: '{}' cannot grow by {} bytes for '{}' beyond {} bytes: {}{}; {}.",
        path_,
        end - begin,
        name,
        begin,
        runtime::detail::errno_text(code),
        unknown ? std::string()
                : ", " + std::to_string(space.available) + " bytes are free",
        runtime::detail::errno_remedy(code));
  }
  bytes_ = end;
  return begin;
}

void ScratchFile::check_size() const {
  const int64_t size = calls_.size_of(fd());
  TESSERA_CHECK(
      size >= bytes_,
      "memory.nvme_path: '{}{}. Its contents are lost: resume from the last checkpoint, with a folder that nothing else writes to.",
      path_,
      size < 0 ? "' cannot be examined: " +
                     runtime::detail::errno_text(static_cast<int>(-size))
               : "' has been truncated to " + std::to_string(size) +
                     " of its " + std::to_string(bytes_) + " bytes");
}

} // namespace tessera::offload
