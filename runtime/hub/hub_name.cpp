// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/hub/hub_name.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <cctype>

namespace tessera::runtime {

namespace {

constexpr std::string_view kScheme = "hf://";
constexpr std::string_view kDataSets = "datasets/";
constexpr std::string_view kSlash = "%2F";

/// What the Hub allows in the names of owners and repositories.
bool is_name(std::string_view text) {
  constexpr size_t kMaxLength = 96;
  return !text.empty() && text.size() <= kMaxLength && text.front() != '.' &&
         text.front() != '-' && text.back() != '.' && text.back() != '-' &&
         text.find("..") == std::string_view::npos &&
         text.find("--") == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

bool is_revision(std::string_view text) {
  return !text.empty() && text.front() != '/' && text.front() != '-' &&
         text.find("..") == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' ||
                  c == '/' || c == '+';
         });
}

bool is_inside(std::string_view path) {
  const std::filesystem::path parts(path);
  return parts.is_relative() &&
         std::none_of(parts.begin(), parts.end(), [](const auto& part) {
           return part == ".." || part == "." || part.empty();
         });
}

std::string replaced_all(
    std::string text,
    std::string_view from,
    std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

[[noreturn]] void fail_in(
    std::string_view text,
    std::string_view part,
    std::string_view value) {
  TESSERA_FAIL(
      "'{}' is not a name on the Hub: its {} is '{}'; write hf://org/name, hf://org/name@revision or hf://datasets/org/name@revision/file",
      text,
      part,
      value);
}

} // namespace

std::string HubName::text() const {
  std::string text(kScheme);
  text += is_data_set ? kDataSets : "";
  text += repository;
  if (revision != "main") {
    text += "@" + replaced_all(revision, "/", kSlash);
  }
  return path.empty() ? text : text + "/" + path;
}

bool is_hub_name(std::string_view text) {
  return text.starts_with(kScheme);
}

HubName parse_hub_name(std::string_view text) {
  if (!is_hub_name(text)) {
    fail_in(text, "beginning", text.substr(0, kScheme.size()));
  }
  HubName name;
  std::string_view rest = text.substr(kScheme.size());
  if (rest.starts_with(kDataSets)) {
    name.is_data_set = true;
    rest.remove_prefix(kDataSets.size());
  } else if (rest.starts_with("models/")) {
    rest.remove_prefix(std::string_view("models/").size());
  }
  while (rest.ends_with('/')) {
    rest.remove_suffix(1);
  }
  // An "@" further on is part of a path.
  const size_t second = rest.find('/', rest.find('/') + 1);
  const size_t at = rest.substr(0, second).find('@');
  std::string_view repository = rest.substr(0, at);
  std::string_view path;
  if (at != std::string_view::npos) {
    const std::string_view after = rest.substr(at + 1);
    const size_t slash = after.find('/');
    name.revision =
        replaced_all(std::string(after.substr(0, slash)), kSlash, "/");
    path = slash == std::string_view::npos ? std::string_view()
                                           : after.substr(slash + 1);
    if (!is_revision(name.revision)) {
      fail_in(text, "revision", name.revision);
    }
  } else if (const size_t owner = repository.find('/');
             owner != std::string_view::npos) {
    const size_t slash = repository.find('/', owner + 1);
    if (slash != std::string_view::npos) {
      path = repository.substr(slash + 1);
      repository = repository.substr(0, slash);
    }
  }
  const size_t slash = repository.find('/');
  const bool has_owner = slash != std::string_view::npos;
  if ((has_owner && !is_name(repository.substr(0, slash))) ||
      !is_name(has_owner ? repository.substr(slash + 1) : repository)) {
    fail_in(text, "repository", repository);
  }
  if (!path.empty() && !is_inside(path)) {
    fail_in(text, "path", path);
  }
  name.repository = repository;
  name.path = path;
  return name;
}

std::optional<HubName> hub_name_of_model(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos || !is_name(text.substr(0, slash)) ||
      !is_name(text.substr(slash + 1))) {
    return std::nullopt;
  }
  HubName name;
  name.repository = text;
  return name;
}

} // namespace tessera::runtime
