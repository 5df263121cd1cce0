// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/stop_filter.h"

#include <algorithm>
#include <utility>

namespace tessera::zoo {

namespace {

/// The length of the longest end of `text` with which `stop` begins.
size_t begun(std::string_view text, std::string_view stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0;
       --length) {
    if (text.ends_with(stop.substr(0, length))) {
      return length;
    }
  }
  return 0;
}

} // namespace

StopFilter::StopFilter(std::vector<std::string> stops)
    : stops_(std::move(stops)) {}

std::string StopFilter::add(std::string_view fragment) {
  if (is_stopped_) {
    return "";
  }
  held_ += fragment;
  size_t first = std::string::npos;
  size_t held = 0;
  for (const std::string& stop : stops_) {
    first = std::min(first, held_.find(stop));
    held = std::max(held, begun(held_, stop));
  }
  if (first != std::string::npos) {
    is_stopped_ = true;
    std::string before = held_.substr(0, first);
    held_.clear();
    return before;
  }
  std::string sure = held_.substr(0, held_.size() - held);
  held_.erase(0, sure.size());
  return sure;
}

std::string StopFilter::finish() {
  return std::exchange(held_, "");
}

} // namespace tessera::zoo
