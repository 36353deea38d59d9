#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hat/config/deck.hpp"
#include "hat/config/option_set.hpp"
#include "hat/core/error.hpp"

namespace hat {

/// What `hat bench longtail` was asked for.
struct LongtailOptions {
  std::string deck;
  /// dispatch/mode[/barriers][:split.policy][@workers]; "none": only what the other options ask for.
  std::vector<std::string> policies{"static/sync", "balanced/sync", "on_demand/sync", "on_demand/hybrid",
                                    "on_demand/async"};
  std::vector<std::string> staleness{"1"};      ///< S of hybrid and async; unbounded
  std::vector<std::string> sequences{"8"};      ///< a worker and step
  std::vector<std::string> lengths{"article"};  ///< article, equal, or the longest of the long tail
  int64_t steps = 40;
  std::vector<double> barrier_depth;
  std::vector<double> jitters;
  bool disturb = false;
  bool hiding = false;
  std::string text;  ///< dataset to cut documents from; empty: synthetic text
  std::string keep;
  bool json = false;
  /// Not asked for: what was measured for runs whose deck leaves the precision open, the same for all; empty: leave it.
  std::string precision;
};

/// A deck key that the bench sets, with the value as on a command line.
struct Setting {
  std::string key;
  std::string value;
  std::string option;      ///< of the bench, that asks for it; empty: the bench itself
  bool overrides = false;  ///< whatever the user has set; otherwise only a deck may have the key
};
using Settings = std::vector<Setting>;

/// Text cut to documents of one distribution of lengths.
struct LongtailData {
  std::string lengths;  ///< as in the options
  int64_t documents = 0;
  std::filesystem::path file;
};

/// One training.
struct LongtailRun {
  std::string policy;     ///< as in the options
  std::string variant;    ///< what is special beside the policy, or empty
  std::string lengths;    ///< as in the options
  int64_t sequences = 0;  ///< a worker and step, if all workers took part
  int workers = 0;
  std::filesystem::path folder;
  Deck deck;
  std::string deck_text;
  KeyBlame blame;
};

/// Trainings that learn the same data in the same steps, compared with the first of them.
struct LongtailGroup {
  std::string title;
  std::vector<LongtailRun> runs;
};

/// What `hat train` makes of a deck file and options.
struct MadeDeck {
  Deck deck;
  std::string text;  ///< effective
  KeyBlame blame;    ///< names where a key was set, and the policy
};

/// Makes decks out of the deck file, HAT_* variables, the deck keys on the command line and a run's own settings.
class DeckMaker {
 public:
  /// `arguments`: what the command line has beside the bench's own options: the deck file and deck keys. `bench_keys`
  /// tell what a setting is blamed on. Throws InputError when there is no deck, when the arguments are none of these,
  /// or when they or the environment set a key that every run has from the bench.
  DeckMaker(std::vector<std::string> arguments, const OptionSet& bench_keys);

  const std::string& deck_file() const { return file_; }
  /// Whether the user has set a key, in any place.
  bool is_set(const std::string& key) const;
  /// An error about the value that a key has from the user or by default, to be thrown.
  InputError error(const std::string& key, const std::string& reason) const;
  /// Throws InputError as `hat train` would, and when the command line or the environment sets a key of `settings`.
  /// `policy`: named by errors; empty: none.
  MadeDeck make(const Settings& settings, const std::string& policy) const;

 private:
  struct Parsed;
  std::vector<std::string> arguments_;
  const OptionSet& bench_keys_;
  std::string file_;
  std::shared_ptr<const Parsed> user_;  // what the user has set, and nothing else
};

struct LongtailPlan {
  std::vector<LongtailData> data;
  std::vector<LongtailGroup> groups;
};

/// The trainings asked for on `ranks` ranks, with run folders and data files in `folder`. Throws InputError on what
/// cannot be had, naming where the option came from (`keys`: those of the bench). Writes nothing.
LongtailPlan plan_longtail(const LongtailOptions& options, const OptionSet& keys, const DeckMaker& decks, int ranks,
                           const std::filesystem::path& folder);

/// Real lengths of the training documents, in tokens: the distribution's, divided by the deck's length_scale.
std::vector<int64_t> training_lengths(const LongtailData& data, const Deck& deck);
/// Of the validation documents: 32 of the same distribution.
std::vector<int64_t> validation_lengths(const LongtailData& data, const Deck& deck);

}  // namespace hat
