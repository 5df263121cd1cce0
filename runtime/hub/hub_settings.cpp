// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/hub/hub_settings.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace tessera::runtime {

namespace {

namespace fs = std::filesystem;

/// Nothing also for an empty value.
std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? std::nullopt
                                            : std::optional<std::string>(value);
}

bool is_on(const char* name) {
  std::string value = variable(name).value_or("");
  std::transform(value.begin(), value.end(), value.begin(), [](char c) {
    return static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

std::chrono::seconds seconds_of(
    const char* name,
    std::chrono::seconds otherwise) {
  const auto text = variable(name);
  if (!text) {
    return otherwise;
  }
  int seconds = 0;
  const auto [end, error] =
      std::from_chars(text->data(), text->data() + text->size(), seconds);
  TESSERA_CHECK(
      error == std::errc() && end == text->data() + text->size() && seconds > 0,
      "the environment variable {} is '{}', but must be a number of seconds, at least 1; correct or unset it",
      name,
      *text);
  return std::chrono::seconds(seconds);
}

std::string trimmed(std::string text) {
  const auto is_space = [](char c) {
    return std::isspace(static_cast<unsigned char>(c)) != 0;
  };
  while (!text.empty() && is_space(text.back())) {
    text.pop_back();
  }
  text.erase(
      text.begin(), std::find_if_not(text.begin(), text.end(), is_space));
  return text;
}

std::string token_of(const fs::path& home) {
  if (is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
    return "";
  }
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (const auto token = variable(name)) {
      return trimmed(*token);
    }
  }
  const fs::path file =
      variable("HF_TOKEN_PATH").value_or((home / "token").string());
  std::error_code code;
  return fs::is_regular_file(file, code) ? trimmed(read_text_file(file)) : "";
}

} // namespace

HubSettings HubSettings::from_environment() {
  HubSettings settings;
  if (const auto endpoint = variable("HF_ENDPOINT")) {
    TESSERA_CHECK(
        endpoint->starts_with("https://") || endpoint->starts_with("http://"),
        "the environment variable HF_ENDPOINT is '{}', but must begin with https:// or http://; correct or unset it",
        *endpoint);
    settings.endpoint = *endpoint;
    while (settings.endpoint.ends_with('/')) {
      settings.endpoint.pop_back();
    }
  }
  const fs::path user = variable("HOME").value_or("/tmp");
  const fs::path caches =
      variable("XDG_CACHE_HOME").value_or((user / ".cache").string());
  const fs::path home =
      variable("HF_HOME").value_or((caches / "huggingface").string());
  settings.cache = variable("HF_HUB_CACHE")
                       .value_or(variable("HUGGINGFACE_HUB_CACHE")
                                     .value_or((home / "hub").string()));
  settings.token = token_of(home);
  TESSERA_CHECK(
      std::all_of(
          settings.token.begin(),
          settings.token.end(),
          [](unsigned char c) { return std::isgraph(c) != 0; }),
      "the token for the Hub (HF_TOKEN, or the file 'token' in HF_HOME) has spaces or line breaks in it; copy it again from https://huggingface.co/settings/tokens");
  settings.is_offline =
      is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE");
  settings.connect_timeout =
      seconds_of("HF_HUB_ETAG_TIMEOUT", settings.connect_timeout);
  settings.stall_timeout =
      seconds_of("HF_HUB_DOWNLOAD_TIMEOUT", settings.stall_timeout);
  return settings;
}

} // namespace tessera::runtime
