# A toolchain file: builds for aarch64 on another Debian with crossbuild-essential-arm64 and the libraries' arm64
# packages; tests run under QEMU. tests/packages/aarch64.sh makes such a system.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
find_program(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
