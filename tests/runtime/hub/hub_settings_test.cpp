// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/hub/hub_settings.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace tessera::runtime {
namespace {

/// Without the variables of whoever runs the tests.
class HubSettingsTest : public testing::Test {
 protected:
  HubSettingsTest() {
    for (const char* name :
         {"HF_ENDPOINT",
          "HF_HUB_CACHE",
          "HUGGINGFACE_HUB_CACHE",
          "HF_HOME",
          "XDG_CACHE_HOME",
          "HF_TOKEN",
          "HUGGING_FACE_HUB_TOKEN",
          "HF_TOKEN_PATH",
          "HF_HUB_DISABLE_IMPLICIT_TOKEN",
          "HF_HUB_OFFLINE",
          "TRANSFORMERS_OFFLINE",
          "HF_HUB_ETAG_TIMEOUT",
          "HF_HUB_DOWNLOAD_TIMEOUT"}) {
      ::unsetenv(name);
    }
    ::setenv("HOME", folder_.path().c_str(), 1);
  }

  TemporaryFolder folder_;
};

TEST_F(HubSettingsTest, DefaultsAreThoseOfHuggingfaceHub) {
  const auto settings = HubSettings::from_environment();
  EXPECT_EQ(settings.endpoint, "https://huggingface.co");
  EXPECT_EQ(settings.cache, folder_ / ".cache/huggingface/hub");
  EXPECT_EQ(settings.token, "");
  EXPECT_FALSE(settings.is_offline);
}

TEST_F(HubSettingsTest, TheCacheIsWhereVariablesSay) {
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(HubSettings::from_environment().cache, "/x/huggingface/hub");
  ::setenv("HF_HOME", "/h", 1);
  EXPECT_EQ(HubSettings::from_environment().cache, "/h/hub");
  ::setenv("HF_HUB_CACHE", "/c", 1);
  EXPECT_EQ(HubSettings::from_environment().cache, "/c");
}

TEST_F(HubSettingsTest, TheTokenIsThatOfTheVariableOrOfTheFile) {
  ::setenv("HF_HOME", folder_.path().c_str(), 1);
  std::ofstream(folder_ / "token") << "hf_file\n";
  EXPECT_EQ(HubSettings::from_environment().token, "hf_file");
  ::setenv("HF_TOKEN", "hf_variable", 1);
  EXPECT_EQ(HubSettings::from_environment().token, "hf_variable");
  ::setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", 1);
  EXPECT_EQ(HubSettings::from_environment().token, "");
}

TEST_F(HubSettingsTest, ValuesThatMakeNoSenseAreRefused) {
  ::setenv("HF_ENDPOINT", "huggingface.co", 1);
  expect_error(
      [] { HubSettings::from_environment(); },
      {"HF_ENDPOINT", "huggingface.co", "https://"});
  ::setenv("HF_ENDPOINT", "https://mirror.org/", 1);
  EXPECT_EQ(HubSettings::from_environment().endpoint, "https://mirror.org");
  ::setenv("HF_HUB_DOWNLOAD_TIMEOUT", "soon", 1);
  expect_error(
      [] { HubSettings::from_environment(); },
      {"HF_HUB_DOWNLOAD_TIMEOUT", "soon"});
  ::setenv("HF_HUB_DOWNLOAD_TIMEOUT", "7", 1);
  EXPECT_EQ(
      HubSettings::from_environment().stall_timeout, std::chrono::seconds(7));
  ::setenv("HF_TOKEN", "hf_a\nX-Evil: 1", 1);
  expect_error([] { HubSettings::from_environment(); }, {"line breaks"});
}

} // namespace
} // namespace tessera::runtime
