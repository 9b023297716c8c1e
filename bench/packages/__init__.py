"""Package files by their digests, from where a machine's own pip and apt look; runs on nodes.

errors         what a download may raise
pip_settings   indexes, folders of links, proxy and certificates of pip's configuration
apt_sources    the mirrors in apt's lists of sources
connection     opens URLs with the settings' proxy, certificates and logins
package_index  the files that indexes, folders of links and mirrors offer of a package
download       fetches files by digest; continues a broken download

This folder imports the standard library alone, and runs on Python 3.9: `bench push` sends it to nodes, for
the assembly of images and for the installation of environments.
"""
