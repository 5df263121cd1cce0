// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/json_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/posix_error.h"
#include "tessera/runtime/io/posix_file.h"

namespace tessera::engine {

namespace {

[[noreturn]] void fail_metrics(const std::filesystem::path& path) {
  const int code = errno;
  TESSERA_FAIL(
      "cannot write the metrics file '{}': {}; {}",
      path.string(),
      runtime::detail::errno_text(code),
      runtime::detail::errno_remedy(code));
}

} // namespace

JsonLinesWriter::JsonLinesWriter(std::filesystem::path path, Mode mode)
    : path_(std::move(path)) {
  const int fresh = mode == Mode::kNew ? O_TRUNC : 0;
  // Reads only to find a torn line.
  fd_ = ::open(
      path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | fresh, 0666);
  if (fd_ < 0) {
    fail_metrics(path_);
  }
  try {
    cut_torn_line();
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

JsonLinesWriter::~JsonLinesWriter() {
  ::close(fd_);
}

void JsonLinesWriter::write(const nlohmann::ordered_json& object) {
  TESSERA_CHECK(
      object.is_object(),
      "{}: a line must be a JSON object, not {}",
      path_.string(),
      object.type_name());
  const std::string line =
      object.dump(
          -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
      "\n";
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t count = ::write(fd_, line.data() + done, line.size() - done);
    if (count < 0 && errno != EINTR) {
      runtime::detail::cut_appended(fd_, done);
      fail_metrics(path_);
    }
    done += count < 0 ? 0 : static_cast<size_t>(count);
  }
}

// A process that died within a line left a tail that is not JSON.
void JsonLinesWriter::cut_torn_line() {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) {
    fail_metrics(path_);
  }
  std::array<char, 4096> block;
  off_t end = status.st_size;
  while (end > 0) {
    const off_t begin =
        std::max<off_t>(0, end - static_cast<off_t>(block.size()));
    const ssize_t count =
        ::pread(fd_, block.data(), static_cast<size_t>(end - begin), begin);
    if (count < 0) {
      fail_metrics(path_);
    }
    const std::string_view text(block.data(), static_cast<size_t>(count));
    const size_t newline = text.rfind('\n');
    if (newline != std::string_view::npos) {
      end = begin + static_cast<off_t>(newline) + 1;
      break;
    }
    end = begin;
  }
  if (end != status.st_size && ::ftruncate(fd_, end) != 0) {
    fail_metrics(path_);
  }
}

} // namespace tessera::engine
