// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/line_prefixer.h"

#include <utility>

namespace tessera::runtime {

LinePrefixer::LinePrefixer(std::string prefix, bool bare_progress)
    : prefix_(std::move(prefix)), bare_progress_(bare_progress) {}

std::string LinePrefixer::feed(std::string_view bytes) {
  std::string lines;
  while (!bytes.empty()) {
    const auto end = bytes.find_first_of("\r\n");
    if (end != 0) {
      append(bytes.substr(0, end), lines);
    }
    if (end == std::string_view::npos) {
      break;
    }
    if (bytes[end] == '\n') {
      end_line(lines);
    } else {
      pending_return_ = true;
    }
    bytes.remove_prefix(end + 1);
  }
  return lines;
}

std::string LinePrefixer::finish() {
  std::string lines;
  if (!line_.empty()) {
    end_line(lines);
  }
  return lines;
}

std::string_view LinePrefixer::progress() const {
  return rewritten_ || pending_return_ ? std::string_view(line_)
                                       : std::string_view();
}

void LinePrefixer::append(std::string_view text, std::string& lines) {
  if (pending_return_) {
    pending_return_ = false;
    rewritten_ = true;
    line_.clear();
  }
  if (line_.size() + text.size() > kMaxLineBytes && !line_.empty()) {
    end_line(lines);
  }
  line_ += text;
}

void LinePrefixer::end_line(std::string& lines) {
  if (!(bare_progress_ && rewritten_)) {
    lines += prefix_;
  }
  lines += line_;
  lines += '\n';
  line_.clear();
  rewritten_ = false;
  pending_return_ = false;
}

} // namespace tessera::runtime
