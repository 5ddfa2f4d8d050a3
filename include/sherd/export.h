/// What all of Sherd's headers share: the namespace's version, and which names the library exports.
///
/// Programs write `sherd::Trainer`. The name in the library has a version, `sherd::v0::Trainer`, so
/// a program that was compiled with other headers doesn't start instead of failing while it runs.
/// The headers need C++20 and the standard library only.
#pragma once

/// Sherd's own sources have a namespace sherd with names of its own, such as sherd::Error.
#if defined(SHERD_INSIDE)
#define SHERD_ABI v0
#else
#define SHERD_ABI inline v0
#endif

#define SHERD_API __attribute__((visibility("default")))
